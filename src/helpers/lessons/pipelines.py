"""The steps of notebook 08: from the code people paste to the fastest pipeline.

Notebook and benchmark use the same ones.
"""

from collections.abc import Callable
from pathlib import Path

from helpers.core import machine, processes
from helpers.lessons import onnx_inference, quantize_onnx, sentiment
from helpers.models import assets

import numpy as np

# What answers (a model, or a file made of one), and how the texts reach it.
STEPS = {
    "as pasted": ("bert-base", "padded"),
    "no padding": ("bert-base", "one by one"),
    "smaller model": ("teacher", "one by one"),
    "ONNX Runtime": ("teacher.onnx", "one by one"),
    "distilled": ("three-layers.onnx", "one by one"),
    "int8": ("three-layers.int8.onnx", "one by one"),
    "batches": ("three-layers.int8.onnx", "batches"),
    "a thread a batch": ("three-layers.int8.onnx", "workers"),
    "smallest student": ("two-layers.int8.onnx", "workers"),
}


def write_files(folder: str | Path) -> dict[str, int]:
    """Write teacher and students as ONNX files, float32 and int8, each in a process of its own.

    Exporting takes several times a model's memory, and a process gives all of it back.

    Returns:
        The bytes of each file, by its name.
    """
    sizes = {}
    # CPUs that add products of bytes in 16 bits need weights of 7 bits.
    narrow = not machine.has_int8_dot_product()
    for name in ("teacher", *sentiment.LAYERS):
        path, int8 = (Path(folder) / f"{name}{suffix}" for suffix in (".onnx", ".int8.onnx"))
        processes.run_in_subprocess(sentiment.export, name, path)
        options = {"reduced_range": narrow}
        processes.run_in_subprocess(quantize_onnx.onnx_dynamic, path, int8, **options)
        sizes |= {file.name: file.stat().st_size for file in (path, int8)}
    return sizes


def torch_one_by_one(model, tokenizer, padding: str | bool = False) -> Callable:
    """Return a function from texts to logits that calls a PyTorch model for each text."""
    import torch

    options = {"padding": padding, "truncation": True, "max_length": 128, "return_tensors": "pt"}

    @torch.inference_mode()
    def logits(texts):
        return np.concatenate([model(**tokenizer(text, **options)).logits for text in texts])

    return logits


def onnx_one_by_one(session, tokenizer) -> Callable:
    """Return a function from texts to logits that runs an ONNX file for each text."""
    options = {"truncation": True, "max_length": 128}

    def logits(texts):
        rows = [onnx_inference.run(session, tokenizer([text], **options)) for text in texts]
        return np.concatenate(rows)

    return logits


def onnx_batches(session, tokenizer, workers: int = 1) -> Callable:
    """Return a function from texts to logits that runs sorted batches, some at the same time."""

    def logits(texts):
        return onnx_inference.predict(session, tokenizer, texts, max_tokens=512, workers=workers)

    return logits


def step(name: str, folder: str, texts: list[str], every: list[str]):
    """Set up one step of `STEPS` as an arm of `timing.compare`.

    Its extra holds megabytes, the first logits, and the labels of `every` text (none for the
    padded step, which would take minutes: the same model without padding answers for it).
    """
    from transformers import BertForSequenceClassification

    source, way = STEPS[name]
    tokenizer = assets.tokenizer("minilm")  # its vocabulary is BERT-base's
    if source.endswith(".onnx"):
        path, workers = Path(folder) / source, 2 if way == "workers" else 1
        session, size = onnx_inference.session(path, threads=2 // workers), path.stat().st_size
        logits = onnx_batches(session, tokenizer, workers)
        if way == "one by one":
            logits = onnx_one_by_one(session, tokenizer)
    else:
        if source == "teacher":
            model = sentiment.teacher()
        else:
            model = assets.model(source, BertForSequenceClassification)
        size = sum(parameter.nbytes for parameter in model.parameters())
        padding = "max_length" if way == "padded" else False
        logits = torch_one_by_one(model, tokenizer, padding)
    labels = []
    if source == "bert-base" and way != "padded":  # one by one would take minutes, too
        labels = sentiment.logits(model, every).argmax(1).tolist()
    elif way != "padded":
        labels = logits(every).argmax(1).tolist()
    extra = {"MB": size / 1e6, "logits": logits(texts[:8]).tolist(), "labels": labels}
    return logits, (texts,), extra
