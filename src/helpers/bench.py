"""The benchmark behind `python -m helpers bench`: each lesson adds a part, one run gives every ratio.

A part measures its arms in processes of their own and returns a table to read and ratios to keep. Absolute times of a
shared machine mean little; what the tutorial states are ratios and peaks taken in one run.
"""

import datetime
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pandas

from . import lessons, machine


@dataclass(frozen=True)
class Part:
    """What one part measured: a table to show, and named numbers for the flat object `ratios`."""

    table: pandas.DataFrame
    ratios: dict[str, float] = field(default_factory=dict)


def notebooks(quick: bool) -> Part:
    """Run every lesson from a fresh kernel: seconds, and the peak memory of the kernel and its children (GiB)."""
    found = lessons.lessons()
    chosen = [min(found, key=lambda lesson: lesson.seconds)] if quick else found
    rows = []
    for lesson in chosen:
        run = lessons.measure([sys.executable, "-m", "jupyter", "execute", str(lesson.path)], cwd=lesson.path.parent)
        if run.status:
            raise RuntimeError(f"{lesson.path.name} failed:\n{run.output[-2000:]}")
        rows.append((lesson.path.stem, run.seconds, lesson.seconds, run.peak / 2**30, lesson.gigabytes * 1e9 / 2**30))
    columns = ["notebook", "seconds", "stated seconds", "peak GiB", "stated GiB"]
    table = pandas.DataFrame(rows, columns=columns).set_index("notebook")
    worst = {"notebook_seconds_worst": table["seconds"].max(), "notebook_peak_gib_worst": table["peak GiB"].max()}
    return Part(table, {name: round(float(value), 3) for name, value in worst.items()})


def _drawn(rng: random.Random) -> tuple:
    """One random training or inference, tiny to base: (config, batch, length, options of `predict_peak`)."""
    from transformers import BertConfig

    hidden = rng.choice([32, 64, 128, 192, 256, 384, 512, 768])
    config = BertConfig(
        hidden_size=hidden,
        num_hidden_layers=rng.randint(1, 12),
        num_attention_heads=max(1, hidden // rng.choice([32, 64])),
        intermediate_size=hidden * rng.choice([2, 3, 4]),
        vocab_size=rng.choice([500, 5000, 30522]),
        attention_probs_dropout_prob=rng.choice([0.0, 0.1, 0.1]),
    )
    options = {"padded": rng.random() < 0.7, "attention": rng.choice(["sdpa", "sdpa", "eager"])}
    options["mode"] = rng.choice(["inference", "training", "training", "training"])
    kind = rng.choice(["float32", "float32", "bfloat16", "mixed"])
    options |= {"mixed_precision": True} if kind == "mixed" else {"dtype": kind}
    if options["mode"] == "training":
        options |= {"optimizer": rng.choice(["adamw", "sgd"]), "accumulate": rng.choice([1, 1, 4])}
        options |= {"checkpointing": rng.random() < 0.3}
        lever = rng.choice(["", "", "embeddings", "body", "layers", "lora"])
        if lever == "lora":
            options["lora"] = rng.choice([2, 8])
        elif lever:
            options["freeze"] = rng.randint(0, config.num_hidden_layers) if lever == "layers" else lever
    return config, rng.randint(1, 16), rng.randint(4, 512), options


def memory(quick: bool, seed: int = 0) -> Part:
    """Predicted against measured CPU peaks of random configurations. The ratios are fractions: 0.01 is 1 %."""
    from .memory import MIB, Step, measure_peak, predict_peak

    rng, rows = random.Random(seed), []
    while len(rows) < (6 if quick else 40):
        config, batch, length, options = _drawn(rng)
        # What would take too long or too much memory to run for real is left out before it is measured.
        if batch * length * config.num_hidden_layers * config.hidden_size**2 > (1e9 if quick else 8e9):
            continue
        start = time.perf_counter()
        predicted = predict_peak(config, batch, length, **options).total
        seconds = time.perf_counter() - start
        if predicted > (400 if quick else 1000) * MIB:
            continue
        step = Step(config, batch, length, **options)
        measured = measure_peak(step.run, step.model, step.optimizer, step.inputs).allocated
        what = f"{config.num_hidden_layers} x {config.hidden_size}, {batch} x {length}, " + ", ".join(
            f"{name}={value}" for name, value in options.items()
        )
        rows.append((what, predicted / MIB, measured / MIB, abs(predicted / measured - 1), seconds))
    columns = ["configuration", "predicted MiB", "measured MiB", "error", "seconds"]
    table = pandas.DataFrame(rows, columns=columns).set_index("configuration")
    errors = {"memory_error_median": table["error"].median(), "memory_error_worst": table["error"].max()}
    return Part(table, {name: round(float(value), 6) for name, value in errors.items()})


PARTS: dict[str, Callable[[bool], Part]] = {"notebooks": notebooks, "memory": memory}


def main(quick: bool, only: list[str] | None, target: Path | None) -> int:
    """Run the chosen parts in turn, print their tables, and write everything to target (JSON) if one is given.

    The file is written anew after every part, so a part that fails or is interrupted costs only itself.
    """
    report = {
        "machine": machine.machine_line(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": "python -m helpers " + " ".join(sys.argv[1:]),
        "quick": quick,
        "parts": {},
        "ratios": {},
    }
    print(report["machine"], flush=True)
    for name in only or PARTS:
        part = PARTS[name](quick)
        print(f"\n{name}\n{part.table.round(3).to_string()}", flush=True)
        report["parts"][name] = json.loads(part.table.reset_index().to_json(orient="records"))
        report["ratios"] |= part.ratios
        if target:
            write(target, report)
    print("\nratios\n" + "\n".join(f"{name:35} {value:g}" for name, value in report["ratios"].items()))
    return 0


def write(target: Path, report: dict) -> None:
    """Write a report as JSON, whole or not at all."""
    with tempfile.NamedTemporaryFile("w", dir=target.parent, suffix=".json", delete=False, encoding="utf-8") as file:
        json.dump(report, file, indent=1)
        file.write("\n")
    Path(file.name).replace(target)
