"""Knowledge distillation: the teacher's kept logits, the checks, the training.

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
        temperature: At most 100, or `math.inf` for the limit.
        label_weight: The labels' share, 0 to 1, which is plain fine-tuning.
        file: See `teacher_logits`.
        training: Options of `train`.

    Raises:
        ValueError: For what would train a wrong student in silence.
    """
    if not (0 < temperature <= HIGHEST or temperature == math.inf) or not 0 <= label_weight <= 1:
        raise ValueError(f"temperature is from 0 to {HIGHEST} or inf, label_weight from 0 to 1")
    check_pair(teacher, student)
    teacher.eval().requires_grad_(False)
    ids, texts = examples["id"].tolist(), examples["text"].tolist()
    labels = torch.full((len(texts),), UNLABELLED)
    if label_weight:
        labels = torch.tensor(examples["label"].tolist())
    targets = teacher_logits(teacher, tokenizer, ids, texts, file)

    def loss(logits, rows):
        own = logits.float().cpu()  # 16 bits are too few
        return recipe.distillation_loss(own, targets[rows], labels[rows], temperature, label_weight)

    return train(student, tokenizer, texts, loss, **training)
