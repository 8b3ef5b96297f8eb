"""The tutorial's working example.

A MiniLM classifier of movie-review snippets, with this project's own adapter.

Used by notebooks 04 to 06 and 08. The adapter (LoRA and a classification head, in
`sentiment_adapter/` with its model card) was trained by `python -m helpers train-teacher` and is
merged into MiniLM's weights when the model is loaded.
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
# The students of `python -m helpers train-student`, and the teacher's layers that each keeps.
LAYERS = {"three-layers": (0, 2, 5), "two-layers": (0, 3)}


def sentences(split: str):
    """The snippets of one split ("train".

    8,060 rows, "test": 2,012) as a table: id, text, rating, label.

    Raises ValueError for another split and AssetError if the texts cannot be had.
    """
    if split not in ("train", "test"):
        raise ValueError(f'there is no split {split!r}: take "train" or "test"')
    table = datasets.reviews()
    return table[table["split"] == split].drop(columns="split").reset_index(drop=True)


def untrained():
    """MiniLM with a new, random head for two labels (the same each time).

    What the teacher's training began with.
    """
    from transformers import AutoModelForSequenceClassification

    label2id = {label: number for number, label in LABELS.items()}
    return assets.model(
        "minilm", AutoModelForSequenceClassification, id2label=LABELS, label2id=label2id
    )


def adapter_digest(adapter: Path = ADAPTER) -> str:
    """The SHA-256 of the adapter that makes the teacher."""
    return files.sha256(adapter / "adapter_model.safetensors")


def teacher(adapter: Path = ADAPTER):
    """The fine-tuned classifier.

    A plain float32 BertForSequenceClassification on the CPU, in eval mode.

    Logits have shape (texts, 2), negative first. It carries `.provenance`. Raises AssetError if
    MiniLM cannot be had.
    """
    from peft import PeftModel

    base = untrained()
    model = PeftModel.from_pretrained(base, adapter).merge_and_unload().eval()
    model.requires_grad_(True)  # as any loaded model; peft had frozen the body
    note = f"merged with this project's sentiment adapter, SHA-256 {adapter_digest(adapter)[:8]}…"
    model.provenance = replace(base.provenance, note=note)
    return model


def unfinished_student(name: str):
    """What a student is trained from.

    Layers of the teacher, the last one computed for the first token only.
    """
    from helpers.lessons import students

    whole = teacher()
    model, _ = students.make_student(whole, LAYERS[name])
    model.provenance = whole.provenance
    del whole
    gc.collect()  # peft's wrapper and the teacher refer to each other, so it would stay in memory beside the student
    return students.read_first_token(model)


def student(name: str, folder: Path = STUDENTS):
    """A student as `python -m helpers train-student` left it.

    A classifier like `teacher`, with `.provenance`.

    Its file holds what training changed in each parameter, matrices as a product: (rows, rank) x
    (rank, columns). Raises KeyError for a name that `LAYERS` lacks, ValueError for a student of
    another teacher, and AssetError if MiniLM cannot be had.
    """
    import torch
    from safetensors import safe_open

    with safe_open(folder / name / "change.safetensors", "pt") as file:
        change = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (it is no mapping)
        if file.metadata() != {"teacher": adapter_digest()}:
            raise ValueError(
                f"{name} was made from another teacher: run python -m helpers train-student {name}"
            )
    model = unfinished_student(name)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            left, right = change.get(f"{key}.left"), change.get(f"{key}.right")
            parameter += change[key].float() if left is None else left.float() @ right.float()
    note = f"{model.provenance.note}; the student {name!r} of its layers"
    model.provenance = replace(model.provenance, note=note)
    return model


def export(name: str, path: str | Path):
    """Writes "teacher", or a student of that name, as an ONNX file.

    What `onnx_export.export` returns.

    For `processes.run_in_subprocess`: the exporter takes several times a model's memory, and keeps
    some of it.
    """
    from helpers.lessons import onnx_export

    return onnx_export.export(teacher() if name == "teacher" else student(name), path)


def logits(model, texts: Sequence[str], max_tokens: int = 1024):
    """A classifier's logits, float32 of shape (texts, labels), in the given order.

    Texts are sorted by length into batches of at most `max_tokens` tokens with padding, and cut at
    128 tokens.
    """
    return inspection.predict(model, assets.tokenizer("minilm"), texts, max_tokens)


def transfer_texts():
    """What students learn from, about 21,000 texts: id, text, label.

    The training snippets, and texts without a label.

    Those have the label -100, as `distillation.distill` wants it.
    """
    from helpers.lessons import distillation

    import pandas as pd

    rows, more = sentences("train").assign(source="reviews"), datasets.unlabelled()
    table = pd.concat([rows, more.assign(label=distillation.UNLABELLED)], ignore_index=True)
    table["id"] = table["source"] + "/" + table["id"].astype(str)
    return table[["id", "text", "label"]]
