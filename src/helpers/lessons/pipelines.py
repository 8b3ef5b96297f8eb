"""The steps of notebook 08, from the code people paste to the fastest; the benchmark's as well."""

import pickle
from collections.abc import Callable
from functools import partial
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
    "first token only": ("first-token.onnx", "one by one"),
    "distilled": ("three-layers.onnx", "one by one"),
    "int8": ("three-layers.int8.onnx", "one by one"),
    "batches": ("three-layers.int8.onnx", "batches"),
    "a thread a batch": ("three-layers.int8.onnx", "workers"),
    "cascade": ("three-layers.int8.onnx", "workers, unless a baseline right on 90 % is sure"),
    "fast cascade": ("three-layers.int8.onnx", "workers, unless a baseline right on 85 % is sure"),
}
# What the steps are compared with: each is an answer of its own to the same question.
BESIDE = {
    "competent PyTorch": ("teacher", "sorted batches in 16 bits, where the CPU has units for them"),
    "smallest student": ("two-layers.int8.onnx", "workers"),
    "baseline": ("TF-IDF", "all at once"),
}
# How often a cascade's baseline has to be right where it is sure, on texts held out of its training
RIGHT = {"cascade": 0.9, "fast cascade": 0.85}


def write_files(folder: str | Path) -> dict[str, int]:
    """Write teacher and students as ONNX files, the students in int8 as well; returns their bytes.

    Exporting takes several times a model's memory: a process of its own gives all of it back.
    """
    files = []
    for names in (["teacher"], ["first-token"], list(sentiment.LAYERS)):
        files += processes.run_in_subprocess(write, names, folder)
    return {path.name: path.stat().st_size for path in files}


def write(names: list[str], folder: str | Path) -> list[Path]:
    """Write models of `sentiment.export`, students in int8 as well; returns the files."""
    files = []
    # CPUs that add products of bytes in 16 bits need weights of 7 bits; an unknown one gets them.
    narrow = not machine.has_int8_dot_product()
    for name in names:
        files.append(Path(folder) / f"{name}.onnx")
        sentiment.export(name, files[-1])
        if name in sentiment.LAYERS:
            files.append(files[-1].with_suffix(".int8.onnx"))
            quantize_onnx.onnx_dynamic(files[-2], files[-1], reduced_range=narrow)
    return files


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
    each = way.startswith("workers")
    session = fast_pipeline.open_session(path, threads=1 if each else cpus)
    if way == "one by one":
        return lambda texts: run_one_by_one(session, tokenizer, texts)
    workers = cpus if each else 1
    return lambda texts: fast_pipeline.classify(texts, session, tokenizer, workers)


def set_up(name: str, folder: str | Path, cpus: int) -> tuple[Callable, int]:
    """Return the function from texts to logits of a step that is no loop, and its bytes."""
    source, way = (STEPS | BESIDE)[name]
    path, call, size = Path(folder) / source, None, 0
    if path.suffix == ".onnx":
        call, size = open_file(path, way, assets.tokenizer("minilm"), cpus), path.stat().st_size
    if name in RIGHT or name == "baseline":
        train = sentiment.sentences("train")
        known = (train["text"].tolist(), train["label"].tolist())
        first, threshold = fast_pipeline.train_baseline(*known, RIGHT.get(name, 0.9))
        options = {"baseline": first, "threshold": threshold, "answer_rest": call}
        call = partial(fast_pipeline.cascade, **options) if call else first.predict_log_proba
        size += len(pickle.dumps(first))
    if name == "competent PyTorch":
        model = sentiment.teacher().to(machine.choose_dtype(torch.device("cpu")))
        call = partial(sentiment.logits, model, max_tokens=512)
        size = sum(parameter.nbytes for parameter in model.parameters())
    return call, size


def step(name: str, folder: str, texts: list[str], every: list[str]):
    """Set up one step for two CPUs as an arm of `timing.compare`.

    Its extra holds megabytes, the first logits, and the labels of `every` text. (For a loop, which
    would take minutes, they are those of batches without padding.)
    """
    from transformers import BertForSequenceClassification

    source, way = (STEPS | BESIDE)[name]
    call, size = set_up(name, folder, cpus=2)
    answer = call
    if not call:
        model = sentiment.teacher()
        if source == "bert-base":
            model = assets.model(source, BertForSequenceClassification)
        padding, tokenizer = way == "padded" and "max_length", assets.tokenizer("minilm")
        call = partial(one_by_one, model, tokenizer, padding=padding)
        answer = partial(sentiment.logits, model)
        size = sum(parameter.nbytes for parameter in model.parameters())
    labels = answer(every).argmax(1).tolist()
    extra = {"MB": size / 1e6, "logits": call(texts[:8]).tolist(), "labels": labels}
    return call, (texts,), extra
