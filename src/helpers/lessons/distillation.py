"""Knowledge distillation: the loss with labels, the teacher's kept answers, a resumable training.

Used by notebook 06. Sources: Hinton, Vinyals and Dean, arXiv:1503.02531 (soft targets); Sanh et
al., DistilBERT, arXiv:1910.01108 (a student that begins as the teacher's layers).
"""

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

from helpers.core import files, tensors
from helpers.lessons.training import train
from helpers.models import batching, inspection
from helpers.recipes.distill import soft_loss

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

UNLABELLED = -100  # the label that PyTorch's cross-entropy leaves out
HIGHEST = 100  # float32 loses the difference of flatter distributions; the limit is math.inf


def distillation_loss(
    student: torch.Tensor,
    teacher: torch.Tensor,
    labels: torch.Tensor | None = None,
    *,
    temperature: float = 1.0,
    label_weight: float = 0.0,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Mix the soft loss of the recipe with cross-entropy for the labels.

    Args:
        student: Logits (texts, classes), or (texts, tokens, classes) with a mask.
        teacher: Logits of the same shape; they get no gradient.
        labels: Of the logits' shape less the classes; -100 for none.
        temperature: At most 100, or `math.inf` for the limit.
        label_weight: The labels' share, 0 to 1.
        mask: The attention mask (texts, tokens); only real tokens are averaged over.

    Raises:
        ValueError: For shapes that would be broadcast, one class, a mask that is not of 0 and 1,
            and a temperature at which float32 would give noise.
    """
    if student.shape != teacher.shape or student.shape[-1] < 2:
        shapes = f"student {tuple(student.shape)}, teacher {tuple(teacher.shape)}"
        raise ValueError(f"{shapes}: both have the same shape, and two classes or more")
    if (mask is None) != (student.dim() == 2):
        raise ValueError("logits of tokens need their attention mask, logits of texts have none")
    if not 0 < temperature <= HIGHEST and temperature != math.inf:
        raise ValueError(f"temperature is above 0, at most {HIGHEST}, or inf, not {temperature}")
    if not 0 <= label_weight <= 1 or (label_weight and labels is None):
        raise ValueError(f"label_weight is from 0 to 1, with labels, not {label_weight}")
    if mask is not None:
        if not ((mask == 0) | (mask == 1)).all():
            raise ValueError("the mask has to be 1 for real tokens and 0 for padding")
        real = mask.bool()
        student, teacher = student[real], teacher[real]
        labels = None if labels is None else labels[real]
    # Flat distributions differ in late digits. MPS does not have float64.
    exact = torch.float32 if student.is_mps else torch.float64
    soft = soft_loss(student.to(exact), teacher.detach().to(exact), temperature).float()
    if not label_weight:
        return soft
    known = labels != UNLABELLED
    own = functional.cross_entropy(student[known].float(), labels[known]) if known.any() else 0.0
    return (1 - label_weight) * soft + label_weight * own


def teacher_logits(
    teacher: nn.Module, tokenizer, ids: Sequence, texts: Sequence[str], file: Path | None = None
) -> torch.Tensor:
    """Return a teacher's logits (examples, labels) in the order of their ids.

    With a file, they are kept there by id and text. What the file has is not computed again,
    unless up to eight examples show that another teacher gave it.

    Raises:
        ValueError: If two texts have the same id.
    """
    keys = [
        f"{str(key).replace(chr(10), ' ')}\n{text}" for key, text in zip(ids, texts, strict=True)
    ]
    if len({str(key) for key in ids}) != len(keys):
        raise ValueError("each text needs an id of its own")
    hashes = [hashlib.sha256(key.encode(errors="surrogatepass")).digest() for key in keys]
    marks = [int.from_bytes(found[:8], "big", signed=True) for found in hashes]
    known = {}
    if file and Path(file).exists():
        saved = load_file(file)
        known = dict(zip(saved["marks"].tolist(), saved["logits"].float(), strict=True))
    kept = [row for row, mark in enumerate(marks) if mark in known]
    probe = kept[:: 1 + len(kept) // 8]
    if probe:
        then = torch.stack([known[marks[row]] for row in probe])
        now = inspection.predict(teacher, tokenizer, [texts[row] for row in probe])
        if now.shape != then.shape or not torch.allclose(now, then, atol=1e-3):
            known = {}
    new = [row for row, mark in enumerate(marks) if mark not in known]
    if new:
        answers = inspection.predict(teacher, tokenizer, [texts[row] for row in new])
        known |= zip([marks[row] for row in new], answers, strict=True)
        if file:
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            logits = torch.stack(list(known.values()))
            with files.atomic_write(file) as part:
                save_file({"marks": torch.tensor(list(known)), "logits": logits}, part)
    return torch.stack([known[mark] for mark in marks])


def check_pair(teacher: nn.Module, student: nn.Module, tokenizer) -> None:
    """Check what would train a wrong student in silence.

    Raises:
        ValueError: If the models have other labels or another order of them, read another number
            of tokens, share memory, or do not know all of the tokenizer's tokens.
    """
    named = []
    for model in (teacher, student):
        labels = sorted(model.config.id2label.items(), key=lambda item: int(item[0]))
        named.append([str(name).lower() for _, name in labels])
    if named[0] != named[1]:
        raise ValueError(f"the labels are {named[0]} and {named[1]}: set the student's id2label")
    for who, model in (("teacher", teacher), ("student", student)):
        if model.config.problem_type not in (None, "single_label_classification"):
            kind = model.config.problem_type
            raise ValueError(f"the {who} is for {kind}: a softmax needs labels that exclude others")
        words = len(model.get_input_embeddings().weight)
        if words < len(tokenizer):
            raise ValueError(f"the tokenizer has {len(tokenizer)} tokens, the {who} {words}")
    reads = [inspection.max_input_length(model) for model in (teacher, student)]
    reads = [min(batching.MAX_LENGTH, length) for length in reads]
    if reads[0] != reads[1]:
        raise ValueError(f"the teacher reads {reads[0]} tokens of a text, the student {reads[1]}")
    held = {parameter.data_ptr() for parameter in teacher.parameters()} - {0}
    for name, parameter in student.named_parameters():
        if parameter.data_ptr() in held:
            raise ValueError(f"{name} is the teacher's own tensor: training would change both")


def distill(
    student: nn.Module,
    teacher: nn.Module,
    tokenizer,
    examples,
    *,
    temperature: float = math.inf,
    label_weight: float = 0.0,
    file: Path | None = None,
    **training,
) -> list[float]:
    """Train a student in place to match its teacher; returns the loss of every step.

    Args:
        student: A classifier of texts; what has `requires_grad` is trained.
        teacher: Another one. It is in eval mode and wants no gradient from then on.
        tokenizer: Of both.
        examples: A table with id, text and, if labels count, label (-100 for none).
        temperature: See `distillation_loss`.
        label_weight: The labels' share; 1 is plain fine-tuning.
        file: Keeps the teacher's logits.
        training: Options of `train`.
    """
    check_pair(teacher, student, tokenizer)
    teacher.eval().requires_grad_(False)
    ids, texts = examples["id"].tolist(), examples["text"].tolist()
    labels = torch.full((len(texts),), UNLABELLED)
    if label_weight:
        labels = torch.tensor(examples["label"].tolist())
    targets = teacher_logits(teacher, tokenizer, ids, texts, file)
    options = {"temperature": temperature, "label_weight": label_weight}

    def loss(logits, rows):
        return distillation_loss(logits, targets[rows], labels[rows], **options)

    goal = (options, tensors.digest([labels, targets.round(decimals=2)]))
    return train(student, tokenizer, texts, loss, goal=goal, **training)
