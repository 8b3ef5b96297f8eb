"""What a card does with SciBERT.

`python -m helpers gpu-report` measures it and writes one JSON; notebook 07 shows it.

It needs CUDA and no network: the architectures are the true ones with random weights, the sentences
this project's own.
"""

import datetime
import functools
import gc
import itertools
import json
import re
import sys
import tempfile
import time
from pathlib import Path

from helpers.core import cuda, files, machine, timing
from helpers.lessons import embedding, memory, training_step
from helpers.lessons.roofline import flops, peaks
from helpers.models import assets, datasets
from helpers.tools import bench

import torch
from transformers import BertConfig, BertModel, BertTokenizer

RECORDED = files.DATA / "gpu_report.json"
SHALLOW = BertConfig(
    hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512
)
_LEVERS = (
    {},
    {"mixed_precision": True},
    {"checkpointing": True},
    {"freeze": "body"},
    {"dtype": "bfloat16"},
)
_LEVERS += ({"mode": "inference"}, {"mode": "inference", "dtype": "bfloat16"})
_BASE, _LARGE, _MINILM, _SCIBERT = (
    assets.config(name) for name in ("bert-base", "bert-large", "minilm", "scibert")
)
_SHAPES = itertools.product((16, 32, 64, 128, 256, 512), (1, 8, 64, 256, 1024))
# Everything that is measured. A test puts small numbers in place of these and runs all of it on the
# CPU.
PLAN = {
    "memory": list(itertools.product((_BASE, _LARGE), ((8, 128), (4, 512), (32, 64)), _LEVERS)),
    "model": _SCIBERT,
    "shapes": [(batch, length) for length, batch in _SHAPES if batch * length <= 65536],
    "copies": 10,  # of the 300 sentences
    "budgets": (2048, 8192, 32768, 65536),  # tokens in a batch
    "against_cpu": list(
        itertools.product((SHALLOW, _MINILM, _SCIBERT), ((1, 8), (1, 128), (16, 32)))
    ),
    "square": 8192,  # of the matrix product that shows what the card reaches
}


def recorded() -> dict | None:
    """The report that is part of this package, or None if no card has made one yet."""
    return json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else None


def report(device: str = "cuda", plan: dict = PLAN) -> dict:
    """Measure everything in `plan` on "cuda" (or "cpu", to try it without a card).

    Returns what `main` writes.
    """
    start, card = (
        time.perf_counter(),
        torch.cuda.get_device_name() if device == "cuda" else machine.cpu_name(),
    )
    half = embedding.choose_dtype(torch.device(device)) if device == "cuda" else torch.bfloat16
    result = {
        "card": card,
        "machine": machine.describe_machine(),
        "versions": machine.versions() | {"cuda": torch.version.cuda},
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "vendor_peaks": dict(
            zip(("16-bit TFLOP/s", "float32 TFLOP/s", "GB/s"), peaks(card) or (), strict=False)
        ),
        "weights": "random, in the true architectures",
        "16-bit": str(half)[6:],
        "units": "ms a call (median, quartiles), bytes, TFLOP/s; share: of the vendor's dense peak in that format",
        "reached": _reached(device, plan["square"], half),
        "memory": [
            _memory(device, config, *shape, options) for config, shape, options in plan["memory"]
        ],
        "throughput": _throughput(device, plan, half),
        "sentences": _sentences(device, plan, half),
        "against_cpu": _against_cpu(device, plan),
    }
    errors = sorted(row["error"] for row in result["memory"])
    half_rows = [row for row in result["throughput"] if row["dtype"] != "float32"]
    naive, *embeds = (row["texts/s"] for row in result["sentences"])
    result["summary"] = {
        "memory configurations": len(errors),
        "memory error, median and worst": [errors[len(errors) // 2], errors[-1]],
        "best share of the 16-bit peak": max(
            (row["share"] for row in half_rows if row["share"]), default=None
        ),
        "embed over naive": max(embeds) / naive,
        "slower than the CPU": [
            row for row in result["against_cpu"] if row["card ms"] > row["CPU ms"]
        ],
        "seconds": time.perf_counter() - start,
    }
    return result


def _round(value):
    """Four figures are what such measurements hold."""
    return json.loads(json.dumps(value), parse_float=lambda number: float(f"{float(number):.4g}"))


def _rows(arms: dict, threads: int | None = None, items: int | None = None) -> dict[str, dict]:
    table = timing.compare(arms, rounds=6, threads=threads, items=items).table.set_index("arm")
    names = {"median ms": "ms", "25 % ms": "25 %", "75 % ms": "75 %", "items/s": "texts/s"}
    return table.rename(columns=names)[[new for old, new in names.items() if old in table]].to_dict(
        "index"
    )


def _shape(config, batch: int, length: int) -> dict:
    return {
        "layers": config.num_hidden_layers,
        "width": config.hidden_size,
        "batch": batch,
        "length": length,
    }


def _model(config, device: str, dtype=torch.float32) -> BertModel:
    with torch.device(device):
        return BertModel(config).to(dtype).eval()


@torch.inference_mode()
def _forward(ids, model):
    return model(input_ids=ids.to(model.device)).last_hidden_state


def _reached(device: str, square: int, half) -> dict:
    """What the device reaches in a large product and a large copy, whatever the data sheet says."""
    a, b = torch.randn(2, square, square, device=device)
    c = a.to(half)
    calls = {
        "float32": lambda _: a @ a,
        str(half)[6:]: lambda _: c @ c,
        "copy": lambda _: b.copy_(a),
    }
    took = {name: _rows({name: (call, (0,))})[name]["ms"] for name, call in calls.items()}
    copied = 2 * a.nbytes / took.pop("copy") / 1e6
    return {f"{name} TFLOP/s": 2 * square**3 / ms / 1e9 for name, ms in took.items()} | {
        "GB/s": copied
    }


def _memory(device: str, config, batch: int, length: int, options: dict) -> dict:
    predicted = memory.predict_peak(config, batch, length, device=device, **options).allocated
    gc.collect()
    with torch.device(device):  # builds the weights there at once
        step = training_step.Step(config, batch, length, device=device, **options)
    measured = memory.measure_peak(
        step.run, step.model, step.optimizer, step.inputs, device=device
    ).allocated
    sizes = {"predicted": predicted, "measured": measured, "error": abs(predicted / measured - 1)}
    return _shape(config, batch, length) | {"options": options} | sizes


def _throughput(device: str, plan: dict, half) -> list[dict]:
    """Every shape in float32 and 16 bit.

    Then the best one with torch.compile as well, which fuses small kernels.
    """
    models = {dtype: _model(plan["model"], device, dtype) for dtype in (torch.float32, half)}
    promised = peaks(torch.cuda.get_device_name()) if device == "cuda" else None
    rows, shapes = [], [(model, shape, {}) for shape in plan["shapes"] for model in models.values()]
    for model, (batch, length), notes in itertools.chain(shapes, _compiled(models[half], rows)):
        ids = torch.randint(5, plan["model"].vocab_size, (batch, length), device=device)
        row = {"dtype": str(model.dtype)[6:], "batch": batch, "length": length} | notes
        try:
            row |= _rows(
                {"call": (functools.partial(_forward, model=model), {"ids": ids})}, items=batch
            )["call"]
        except (
            Exception
        ) as error:  # too little memory, no compiler: the rest of the report still counts
            rows.append(row | {"failed": f"{error!r:.200}", "share": None})
            continue
        row["TFLOP/s"] = flops(plan["model"], length, batch) / row["ms"] / 1e9
        rows.append(
            row | {"share": promised and row["TFLOP/s"] / promised[row["dtype"] == "float32"]}
        )
    return rows


def _compiled(model, rows: list[dict]):
    """One more thing to measure when all the others are done: the best shape with torch.compile."""
    best = max(rows, key=lambda row: row.get("TFLOP/s", 0))
    yield torch.compile(model), (best["batch"], best["length"]), {"compiled": True}


def _sentences(device: str, plan: dict, half) -> list[dict]:
    """`embed` on real sentences, one token a word, tokenising included, against the naive loop.

    Texts/s.
    """
    texts = datasets.science_sentences()["text"].tolist()
    words = sorted({word for text in texts for word in re.findall(r"\w+|[^\w\s]", text.lower())})
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
        (Path(folder) / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
        tokenizer = BertTokenizer.from_pretrained(folder)
    model, limit = _model(plan["model"], device), plan["model"].max_position_embeddings

    def naive(texts):
        for start in range(0, len(texts), 8):
            padded = tokenizer(
                texts[start : start + 8],
                padding="max_length",
                max_length=limit,
                return_tensors="pt",
            )
            with torch.inference_mode():
                model(**padded.to(device)).last_hidden_state.mean(1).cpu()

    rows = _rows({"naive": (naive, {"texts": texts})}, items=len(texts))
    for dtype, budget in itertools.product(("float32", str(half)[6:]), plan["budgets"]):
        call = functools.partial(
            embedding.embed, model=model, tokenizer=tokenizer, max_tokens=budget, precision=dtype
        )
        more = {"texts": texts * plan["copies"]}
        rows |= _rows({f"embed, {dtype}, {budget} tokens": (call, more)}, items=len(more["texts"]))
    return [{"arm": arm} | row for arm, row in rows.items()]


def _against_cpu(device: str, plan: dict) -> list[dict]:
    """The CPU with two threads against the card, from ids on the CPU to results on the CPU.

    Where does a card pay?
    """
    rows = []
    for config, (batch, length) in plan["against_cpu"]:
        ids = {"ids": torch.randint(5, config.vocab_size, (batch, length))}
        cpu, card = (
            functools.partial(_forward, model=_model(config, place)) for place in ("cpu", device)
        )
        took = _rows(
            {"CPU": (cpu, ids), "card": (lambda ids, card=card: card(ids).cpu(), ids)}, threads=2
        )
        rows.append(
            _shape(config, batch, length)
            | {"CPU ms": took["CPU"]["ms"], "card ms": took["card"]["ms"]}
        )
    return rows


def main(target: Path = RECORDED) -> int:
    """Measure and write the report, whole or not at all; 1 where there is no CUDA."""
    if not (status := cuda.cuda_status()).available:
        print(f"The report needs a CUDA device: {status.reason}", file=sys.stderr)
        return 1
    result = _round(report())
    bench.write(target, result)
    print(
        json.dumps(result["summary"], indent=1),
        f"\nwritten to {target}: {target.stat().st_size / 1000:.0f} kB",
    )
    return 0
