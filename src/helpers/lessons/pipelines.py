"""The steps of notebook 08, from the code people paste to the fastest; the benchmark's as well."""

from collections.abc import Callable
from pathlib import Path

from helpers.core import machine, processes
from helpers.lessons import quantize_onnx, sentiment
from helpers.models import assets
from helpers.recipes import fast_pipeline

import numpy as np
import torch

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
    """Write teacher and students as ONNX files, float32 and int8; returns the bytes of each file.

    Exporting takes several times a model's memory: a process of its own gives all of it back.
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


def one_by_one(model, tokenizer, texts, padding=False):
    """Return the logits (texts, labels) of a PyTorch model that is called for each text."""
    options = {"truncation": True, "max_length": 128, "return_tensors": "pt", "padding": padding}
    with torch.inference_mode():
        return torch.cat([model(**tokenizer(text, **options)).logits for text in texts]).numpy()


def run_one_by_one(session, tokenizer, texts):
    """Return the logits (texts, labels) of an ONNX file that is run for each text."""
    options = {"truncation": True, "max_length": 128, "return_tensors": "np"}
    rows = [session.run(None, dict(tokenizer([text], **options)))[0] for text in texts]
    return np.concatenate(rows)


def open_file(path: str | Path, way: str, tokenizer, cpus: int) -> Callable:
    """Return a function from texts to logits through an ONNX file, in one of the ways of `STEPS`.

    All CPUs work on one text or batch at a time; with "workers", each on a batch of its own.
    """
    session = fast_pipeline.open_session(path, threads=1 if way == "workers" else cpus)
    if way == "one by one":
        return lambda texts: run_one_by_one(session, tokenizer, texts)
    workers = cpus if way == "workers" else 1
    return lambda texts: fast_pipeline.classify(texts, session, tokenizer, workers)


def step(name: str, folder: str, texts: list[str], every: list[str]):
    """Set up one step for two CPUs as an arm of `timing.compare`.

    Its extra holds megabytes, the first logits, and the labels of `every` text (none for the
    padded step, which would take minutes: the same model without padding answers for it).
    """
    from transformers import BertForSequenceClassification

    source, way = STEPS[name]
    tokenizer = assets.tokenizer("minilm")  # its vocabulary is BERT-base's
    labels = []
    if source.endswith(".onnx"):
        path = Path(folder) / source
        logits, size = open_file(path, way, tokenizer, cpus=2), path.stat().st_size
        labels = logits(every).argmax(1).tolist()
    else:
        model = sentiment.teacher()
        if source == "bert-base":
            model = assets.model(source, BertForSequenceClassification)
        size = sum(parameter.nbytes for parameter in model.parameters())
        padding = "max_length" if way == "padded" else False

        def logits(texts):
            return one_by_one(model, tokenizer, texts, padding)

        if way != "padded":
            labels = sentiment.logits(model, every).argmax(1).tolist()
    extra = {"MB": size / 1e6, "logits": logits(texts[:8]).tolist(), "labels": labels}
    return logits, (texts,), extra
