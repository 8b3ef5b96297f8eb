"""The tutorial's working example: MiniLM as a classifier of movie reviews (04 to 06, and 08).

The adapter (LoRA and a classification head, with its model card) was trained by `python -m helpers
train-teacher` and is merged into MiniLM's weights when the model is loaded.
"""

import gc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from helpers.core import files
from helpers.models import assets, datasets, inspection

ADAPTER = files.DATA / "sentiment_adapter"
LABELS = {0: "negative", 1: "positive"}
STUDENTS = files.DATA / "students"
TEACHER_LOGITS = STUDENTS / "teacher_logits.safetensors"  # for all texts that students learn from
# The students of `python -m helpers train-student`, and the teacher's layers that each keeps
LAYERS = {"three-layers": (0, 2, 5), "two-layers": (0, 3)}


def sentences(split: str):
    """Return the snippets of one split as a table: id, text, rating, label.

    "train" has 8,060 rows, "test" 2,012.
    """
    if split not in ("train", "test"):  # an empty table would go on without an error
        raise ValueError(f'there is no split {split!r}: take "train" or "test"')
    table = datasets.reviews()
    return table[table["split"] == split].drop(columns="split").reset_index(drop=True)


def untrained():
    """Return MiniLM with a new head for two labels, the same each time."""
    from transformers import AutoModelForSequenceClassification

    label2id = {label: number for number, label in LABELS.items()}
    return assets.model(
        "minilm", AutoModelForSequenceClassification, id2label=LABELS, label2id=label2id
    )


def adapter_digest(adapter: Path = ADAPTER) -> str:
    """Return the SHA-256 of the adapter that makes the teacher."""
    return files.sha256(adapter / "adapter_model.safetensors")


def teacher(adapter: Path = ADAPTER):
    """Return the fine-tuned classifier, float32 on the CPU in eval mode, with its provenance.

    Its logits have shape (texts, 2), negative first.
    """
    from peft import PeftModel

    base = untrained()
    model = PeftModel.from_pretrained(base, adapter).merge_and_unload().eval()
    model.requires_grad_(True)  # as any loaded model; peft had frozen the body
    note = f"merged with this project's sentiment adapter, SHA-256 {adapter_digest(adapter)[:8]}…"
    model.provenance = replace(base.provenance, note=note)
    return model


def unfinished_student(name: str):
    """Return what a student is trained from: layers of the teacher, the last for one token."""
    from helpers.lessons import students
    from helpers.recipes.distill import cut_student

    whole = teacher()
    model = cut_student(whole, LAYERS[name]).eval()
    model.provenance = whole.provenance
    del whole
    gc.collect()  # peft's wrapper and the teacher refer to each other, and would stay in memory
    return students.read_first_token(model)


def student(name: str, folder: Path = STUDENTS):
    """Return a student as `python -m helpers train-student` left it, with its provenance.

    Its file holds what training changed in each parameter, matrices as a product: (rows, rank) x
    (rank, columns).

    Raises:
        ValueError: If it was made from another teacher.
    """
    import torch
    from safetensors import safe_open

    with safe_open(folder / name / "change.safetensors", "pt") as file:
        change = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)
        if file.metadata() != {"teacher": adapter_digest()}:
            command = f"python -m helpers train-student {name}"
            raise ValueError(f"{name} was made from another teacher: run {command}")
    model = unfinished_student(name)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            left, right = change.get(f"{key}.left"), change.get(f"{key}.right")
            parameter += change[key].float() if left is None else left.float() @ right.float()
    note = f"{model.provenance.note}; the student {name!r} of its layers"
    model.provenance = replace(model.provenance, note=note)
    return model


def export(name: str, path: str | Path):
    """Write "teacher", or a student of that name, as `onnx_export.export` does.

    "first-token" is the teacher, whose last layer computes only what its head reads. It is for
    `processes.run_in_subprocess`: the exporter keeps some of its memory.
    """
    from helpers.lessons import onnx_export, students

    model = student(name) if name in LAYERS else teacher()
    if name == "first-token":
        students.read_first_token(model)
    return onnx_export.export(model, path)


def logits(model, texts: Sequence[str], max_tokens: int = 1024):
    """Return a classifier's logits (texts, labels) with MiniLM's tokenizer; see `predict`."""
    return inspection.predict(model, assets.tokenizer("minilm"), texts, max_tokens)


def transfer_texts():
    """Return what students learn from, about 21,000 texts, as a table: id, text, rating, label.

    They are the training snippets, and texts from elsewhere, whose label is -100: no student sees
    what people said of those.
    """
    from helpers.lessons import distillation

    import pandas as pd

    rows, more = sentences("train").assign(source="reviews"), datasets.unlabelled()
    table = pd.concat([rows, more.assign(label=distillation.UNLABELLED)], ignore_index=True)
    table["id"] = table["source"] + "/" + table["id"].astype(str)
    return table[["id", "text", "rating", "label"]]
