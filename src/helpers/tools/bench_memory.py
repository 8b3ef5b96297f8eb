"""Benchmark parts of notebooks 02 and 03: predicted and measured memory, loading checkpoints."""

import random
import tempfile
import time
from pathlib import Path

from helpers.core import processes
from helpers.core.tensors import GIB, MIB
from helpers.lessons import checkpoints as loading
from helpers.lessons.memory import largest_batch, measure_peak, predict_peak
from helpers.lessons.training_step import Step
from helpers.models import assets
from helpers.tools.bench_report import Part, rounded

import pandas
import torch
from transformers import BertConfig, BertModel

OPTIONS = {"padded": (True, True, False), "attention": ("sdpa", "sdpa", "eager")}
FORMATS = ({}, {}, {"dtype": "bfloat16"}, {"mixed_precision": True})
TRAINING = {"optimizer": ("adamw", "sgd"), "accumulate": (1, 1, 4), "checkpointing": (0, 0, 1)}
LEVERS = ({}, {}, {"freeze": "body"}, {"freeze": 1}, {"lora": 2}, {"lora": 8})


def _drawn(rng: random.Random, base: bool) -> tuple:
    """Draw config, batch, length and options of one training or inference, tiny or BERT-base."""
    hidden = rng.choice([32, 64, 128, 192, 256, 384, 512, 768])
    drawn = BertConfig(
        hidden_size=hidden,
        num_hidden_layers=rng.randint(1, 12),
        num_attention_heads=max(1, hidden // rng.choice([32, 64])),
        intermediate_size=hidden * rng.choice([2, 3, 4]),
        vocab_size=rng.choice([500, 5000, 30522]),
        attention_probs_dropout_prob=rng.choice([0.0, 0.1, 0.1]),
    )
    config = BertConfig() if base else drawn
    options = {name: rng.choice(values) for name, values in OPTIONS.items()}
    options |= {"mode": rng.choice(["inference", "training", "training", "training"])}
    options |= rng.choice(FORMATS)
    if options["mode"] == "training":
        options |= {name: rng.choice(values) for name, values in TRAINING.items()}
        options |= rng.choice(LEVERS)
    return config, rng.randint(1, 16), rng.randint(4, 512), options


def _measured(config, batch: int, length: int, **options) -> int:
    """Return the peak in bytes of a step, which is gone afterwards."""
    step = Step(config, batch, length, **options)
    return measure_peak(step.run, step.model, step.optimizer, step.inputs).allocated


def _largest_batch_off_by(gib: float = 0.25) -> int:
    """Return by how many texts the predicted largest batch of a small BERT misses the true one."""
    config = BertConfig(hidden_size=128, num_hidden_layers=4, num_attention_heads=2)
    best = true = largest_batch(config, 128, gib, margin=0)
    while _measured(config, true + 1, 128) <= gib * GIB:
        true += 1
    while _measured(config, true, 128) > gib * GIB:
        true -= 1
    return abs(best - true)


def _described(size: str, length: int, options: dict) -> str:
    named = [f"{name}={value}" for name, value in options.items()]
    return ", ".join([size, f"{length} tokens", *named])


def _peaks(rng: random.Random, quick: bool) -> list[dict]:
    """Predict and measure random configurations, leaving out what would take too long."""
    rows, count = [], 6 if quick else 40
    most_work, most_memory = (1e9, 400 * MIB) if quick else (8e9, 3000 * MIB)
    while len(rows) < count:
        config, batch, length, options = _drawn(rng, base=not quick and len(rows) >= count - 5)
        work = batch * length * config.num_hidden_layers * config.hidden_size**2
        if work > most_work:
            continue
        start = time.perf_counter()
        predicted = predict_peak(config, batch, length, **options).total
        seconds = time.perf_counter() - start
        if predicted > most_memory:
            continue
        found = _measured(config, batch, length, **options)
        size = f"{config.num_hidden_layers} x {config.hidden_size}"
        rows.append(
            {
                "configuration": _described(size, length, options),
                "batch": batch,
                "seconds": seconds,
                "predicted MiB": predicted / MIB,
                "measured MiB": found / MIB,
                "error": abs(predicted / found - 1),
            }
        )
    return rows


def predict_large(options: dict) -> tuple[int, float, int]:
    """Return BERT-large's peak in bytes, the seconds to predict it, and this process's peak."""
    large = assets.config("bert-large")
    start = time.perf_counter()
    peak = predict_peak(large, 32, 512, **options)
    return peak.total, time.perf_counter() - start, processes.process_peak()


def memory(quick: bool, seed: int = 0) -> Part:
    """Compare predicted with measured CPU peaks and largest batches; errors are fractions.

    BERT-large is predicted in processes of their own, whose whole memory counts.
    """
    rng = random.Random(seed)
    rows = _peaks(rng, quick)
    for options in ({}, {"accumulate": 4}, {"lora": 8, "checkpointing": True, "device": "cuda"}):
        predicted, seconds, taken = processes.run_in_subprocess(predict_large, options)
        rows.append(
            {
                "configuration": _described("BERT-large", 512, options),
                "batch": 32,
                "seconds": seconds,
                "process GiB": taken / GIB,
                "predicted MiB": predicted / MIB,
            }
        )
    table = pandas.DataFrame(rows).set_index("configuration")
    ratios = {
        "memory_error_median": table["error"].median(),
        "memory_error_worst": table["error"].max(),
        "largest_batch_off_by": _largest_batch_off_by(),
        "memory_prediction_seconds_worst": table["seconds"].max(),
        "memory_prediction_gib_worst": table["process GiB"].max(),
    }
    return Part(table, rounded(ratios, 6))


def copies_while_loading(way: str, path: Path, vocabulary: int, layers: int) -> float:
    """Load a checkpoint; return the peak above the memory before, in copies of the weights."""
    config = BertConfig(vocab_size=vocabulary, num_hidden_layers=layers)
    # What is imported late belongs to the memory before.
    BertModel(BertConfig(num_hidden_layers=1, vocab_size=10))
    before = processes.process_memory()
    if way == "pasted":
        model = BertModel(config)
        model.load_state_dict(torch.load(path, map_location="cpu"))
    else:
        model = loading.load(path, lambda: BertModel(config)).model
    weights = list(model.state_dict().values())
    for weight in weights:
        weight.sum()  # mapped weights would not be in memory yet
    return (processes.process_peak() - before) / sum(weight.nbytes for weight in weights)


def checkpoints(quick: bool) -> Part:
    """Measure the peak of a fresh process that loads BERT-base, in copies of its weights.

    The weights are random, which memory does not notice. A quick run takes a smaller model.
    """
    vocabulary, layers = (10_000, 4) if quick else (30_522, 12)
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pth"
        model = BertModel(BertConfig(vocab_size=vocabulary, num_hidden_layers=layers))
        torch.save(model.state_dict(), path)
        for way in ("pasted", "checkpoints.load"):
            request = (copies_while_loading, way, path, vocabulary, layers)
            rows[way] = processes.run_in_subprocess(*request)
    table = pandas.DataFrame({"peak, in copies of the weights": rows}).rename_axis("loading")
    return Part(table, rounded({"checkpoint_peak_over_weights": rows["checkpoints.load"]}))
