"""Knowledge distillation: the checked loss, the teacher's kept logits, the training.

Used by notebook 06. Sources: Hinton, Vinyals and Dean, arXiv:1503.02531 (soft targets); Sanh et
al., DistilBERT, arXiv:1910.01108 (a student that begins as the teacher's layers).
"""

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

from helpers.core import files
from helpers.lessons.training import train
from helpers.models import inspection
from helpers.recipes import distill as recipe

import torch
from safetensors.torch import load_file, save_file
from torch import nn

UNLABELLED = -100  # the label that PyTorch's cross-entropy leaves out
HIGHEST = 100  # float32 loses the difference of flatter distributions; the limit is math.inf


def distillation_loss(
    student: torch.Tensor,
    teacher: torch.Tensor,
    labels: torch.Tensor | None = None,
    *,
    temperature: float = 1.0,
    label_weight: float = 0.0,
) -> torch.Tensor:
    """Mix the soft loss of the recipe with cross-entropy for the labels.

    Args:
        student: Logits (texts, classes).
        teacher: Logits of the same shape; they get no gradient.
        labels: Of shape (texts,); -100 for none.
        temperature: At most 100, or `math.inf` for the limit.
        label_weight: The labels' share, 0 to 1.

    Raises:
        ValueError: For what would be broadcast or give a wrong number without an error.
    """
    if student.shape != teacher.shape or student.dim() != 2:
        shapes = f"student {tuple(student.shape)}, teacher {tuple(teacher.shape)}"
        raise ValueError(f"{shapes}: both have the same shape (texts, classes)")
    if not 0 < temperature <= HIGHEST and temperature != math.inf:
        raise ValueError(f"temperature is above 0, at most {HIGHEST}, or inf, not {temperature}")
    if not 0 <= label_weight <= 1 or (label_weight and labels is None):
        raise ValueError(f"label_weight is from 0 to 1, with labels, not {label_weight}")
    if labels is None:
        labels = torch.full(student.shape[:1], UNLABELLED, device=student.device)
    exact = torch.promote_types(student.dtype, torch.float32)  # 16 bits are too few
    student, teacher = student.to(exact), teacher.detach().to(exact)
    return recipe.distillation_loss(student, teacher, labels, temperature, label_weight)


def teacher_logits(
    teacher: nn.Module, tokenizer, ids: Sequence, texts: Sequence[str], file: Path | None = None
) -> torch.Tensor:
    """Return a teacher's logits (examples, labels) in the order of their ids.

    A file keeps them by id and text. They are read from it where it has all of them and up to nine
    examples show that the same teacher gave them; otherwise they are computed, and replace it. (A
    digest of the teacher would not do: where weights are merged, their last bits depend on the
    CPU.)
    """
    hashes = [hashlib.sha256(f"{i}\n{t}".encode()) for i, t in zip(ids, texts, strict=True)]
    marks = [int.from_bytes(found.digest()[:8], "big", signed=True) for found in hashes]
    if file and file.exists():
        saved = load_file(file)
        known = dict(zip(saved["marks"].tolist(), saved["logits"], strict=True))
        if known.keys() >= set(marks):
            kept = torch.stack([known[mark] for mark in marks])
            probes = slice(None, None, 1 + len(marks) // 8)
            now = inspection.predict(teacher, tokenizer, texts[probes])
            if now.shape == kept[probes].shape and torch.allclose(now, kept[probes], atol=1e-3):
                return kept
    logits = inspection.predict(teacher, tokenizer, texts)
    if file:
        with files.atomic_write(file) as part:
            save_file({"marks": torch.tensor(marks), "logits": logits}, part)
    return logits


def check_pair(teacher: nn.Module, student: nn.Module) -> None:
    """Check what would train a wrong student in silence.

    Raises:
        ValueError: If the models have other labels or another order of them, or share memory.
    """
    named = []
    for model in (teacher, student):
        labels = sorted(model.config.id2label.items(), key=lambda item: int(item[0]))
        named.append([str(name).lower() for _, name in labels])
    if named[0] != named[1]:
        raise ValueError(f"the labels are {named[0]} and {named[1]}: set the student's id2label")
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
        temperature: See `distillation_loss`, as for `label_weight`.
        label_weight: 1 is plain fine-tuning.
        file: See `teacher_logits`.
        training: Options of `train`.
    """
    check_pair(teacher, student)
    teacher.eval().requires_grad_(False)
    ids, texts = examples["id"].tolist(), examples["text"].tolist()
    labels = torch.full((len(texts),), UNLABELLED)
    if label_weight:
        labels = torch.tensor(examples["label"].tolist())
    targets = teacher_logits(teacher, tokenizer, ids, texts, file)
    options = {"temperature": temperature, "label_weight": label_weight}

    def loss(logits, rows):
        return distillation_loss(logits.cpu(), targets[rows], labels[rows], **options)

    return train(student, tokenizer, texts, loss, **training)
