"""What a card does with SciBERT: `python -m helpers gpu-report` measures it and writes one JSON; notebook 07 shows it.

It needs CUDA and no network: the architectures are the true ones with random weights, the sentences this project's own.
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

from helpers import assets, bench, embedding, machine, memory, timing

import torch
from transformers import BertConfig, BertModel, BertTokenizer

RECORDED = Path(__file__).parent / "gpu_report.json"
# The vendors' data sheets, by the names that PyTorch gives: TFLOP/s of dense 16-bit products (bfloat16; float16 on T4
# and V100, which have no bfloat16 units), TFLOP/s of float32 without TensorFloat-32, GB/s of memory.
PEAKS = {
    "Tesla T4": (65, 8.1, 320),
    "Tesla V100-SXM2-16GB": (125, 15.7, 900),
    "Tesla V100-SXM2-32GB": (125, 15.7, 900),
    "NVIDIA A100-SXM4-40GB": (312, 19.5, 1555),
    "NVIDIA A100-SXM4-80GB": (312, 19.5, 2039),
    "NVIDIA L4": (121, 30.3, 300),
    "NVIDIA H100 PCIe": (756, 51, 2000),
    "NVIDIA H100 80GB HBM3": (989, 67, 3350),
    "NVIDIA H200": (989, 67, 4800),
}
SHALLOW = BertConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512)
_LEVERS = ({}, {"mixed_precision": True}, {"checkpointing": True}, {"freeze": "body"}, {"dtype": "bfloat16"})
_LEVERS += ({"mode": "inference"}, {"mode": "inference", "dtype": "bfloat16"})
_BASE, _LARGE, _MINILM, _SCIBERT = (assets.config(name) for name in ("bert-base", "bert-large", "minilm", "scibert"))
_SHAPES = itertools.product((16, 32, 64, 128, 256, 512), (1, 8, 64, 256, 1024))
# Everything that is measured. A test puts small numbers in place of these and runs all of it on the CPU.
PLAN = {
    "memory": list(itertools.product((_BASE, _LARGE), ((8, 128), (4, 512), (32, 64)), _LEVERS)),
    "model": _SCIBERT,
    "shapes": [(batch, length) for length, batch in _SHAPES if batch * length <= 65536],
    "copies": 10,  # of the 300 sentences
    "budgets": (2048, 8192, 32768, 65536),  # tokens in a batch
    "against_cpu": list(itertools.product((SHALLOW, _MINILM, _SCIBERT), ((1, 8), (1, 128), (16, 32)))),
    "square": 8192,  # of the matrix product that shows what the card reaches
}


def recorded() -> dict | None:
    """The report that is part of this package, or None if no card has made one yet."""
    return json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else None


def flops(config, length: int, texts: int = 1) -> int:
    """Floating-point operations of BertModel's forward pass on texts of `length` tokens; a multiply-add counts as two.

    For each token a layer has four products of width x width and two of width x intermediate; for each pair of tokens a
    score and a weighted sum (Kaplan et al. 2020, section 2.1); the pooler has one product for each text.
    """
    width, inner = config.hidden_size, config.intermediate_size
    layer = length * 2 * (4 * width**2 + 2 * width * inner) + 4 * length**2 * width
    return texts * (config.num_hidden_layers * layer + 2 * width**2)


def bound(config, length: int, texts: int, teraflops: float, gigabytes: float, size: int) -> float:
    """The roofline: the most texts/s in batches of `texts`, at TFLOP/s, GB/s and bytes of a number as given.

    A batch takes at least as long as its operations, and as reading the layers' weights once (Williams et al., 2009).
    """
    width, layers = config.hidden_size, config.num_hidden_layers
    weights = layers * (4 * width**2 + 2 * width * config.intermediate_size) * size
    return texts / max(flops(config, length, texts) / (teraflops * 1e12), weights / (gigabytes * 1e9))


def peaks(card: str) -> tuple[float, float, float] | None:
    """The vendor's peaks of a card (see `PEAKS`) by the name that PyTorch gives, None for one that is not listed.

    The whole name counts: an L40S is no L4, and a MIG slice of an H100 no H100.
    """
    return PEAKS.get(card)


def report(device: str = "cuda", plan: dict = PLAN) -> dict:
    """Measure everything in `plan` on "cuda" (or "cpu", to try it without a card); returns what `main` writes."""
    start, card = time.perf_counter(), torch.cuda.get_device_name() if device == "cuda" else machine.cpu_name()
    half = embedding.choose_dtype(torch.device(device)) if device == "cuda" else torch.bfloat16
    result = {
        "card": card,
        "machine": machine.machine_line(),
        "versions": machine.versions() | {"cuda": torch.version.cuda},
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "vendor_peaks": dict(zip(("16-bit TFLOP/s", "float32 TFLOP/s", "GB/s"), peaks(card) or (), strict=False)),
        "weights": "random, in the true architectures",
        "16-bit": str(half)[6:],
        "units": "ms a call (median, quartiles), bytes, TFLOP/s; share: of the vendor's dense peak in that format",
        "reached": _reached(device, plan["square"], half),
        "memory": [_memory(device, config, *shape, options) for config, shape, options in plan["memory"]],
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
        "best share of the 16-bit peak": max((row["share"] for row in half_rows if row["share"]), default=None),
        "embed over naive": max(embeds) / naive,
        "slower than the CPU": [row for row in result["against_cpu"] if row["card ms"] > row["CPU ms"]],
        "seconds": time.perf_counter() - start,
    }
    return result


def _round(value):
    """Four figures are what such measurements hold."""
    return json.loads(json.dumps(value), parse_float=lambda number: float(f"{float(number):.4g}"))


def _rows(arms: dict, threads: int | None = None, items: int | None = None) -> dict[str, dict]:
    table = timing.compare(arms, rounds=6, threads=threads, items=items).table.set_index("arm")
    names = {"median ms": "ms", "25 % ms": "25 %", "75 % ms": "75 %", "items/s": "texts/s"}
    return table.rename(columns=names)[[new for old, new in names.items() if old in table]].to_dict("index")


def _shape(config, batch: int, length: int) -> dict:
    return {"layers": config.num_hidden_layers, "width": config.hidden_size, "batch": batch, "length": length}


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
    calls = {"float32": lambda _: a @ a, str(half)[6:]: lambda _: c @ c, "copy": lambda _: b.copy_(a)}
    took = {name: _rows({name: (call, (0,))})[name]["ms"] for name, call in calls.items()}
    copied = 2 * a.nbytes / took.pop("copy") / 1e6
    return {f"{name} TFLOP/s": 2 * square**3 / ms / 1e9 for name, ms in took.items()} | {"GB/s": copied}


def _memory(device: str, config, batch: int, length: int, options: dict) -> dict:
    predicted = memory.predict_peak(config, batch, length, device=device, **options).allocated
    gc.collect()
    with torch.device(device):  # builds the weights there at once
        step = memory.Step(config, batch, length, device=device, **options)
    measured = memory.measure_peak(step.run, step.model, step.optimizer, step.inputs, device=device).allocated
    sizes = {"predicted": predicted, "measured": measured, "error": abs(predicted / measured - 1)}
    return _shape(config, batch, length) | {"options": options} | sizes


def _throughput(device: str, plan: dict, half) -> list[dict]:
    """Every shape in float32 and 16 bit; then the best one with torch.compile as well, which fuses small kernels."""
    models = {dtype: _model(plan["model"], device, dtype) for dtype in (torch.float32, half)}
    promised = peaks(torch.cuda.get_device_name()) if device == "cuda" else None
    rows, shapes = [], [(model, shape, {}) for shape in plan["shapes"] for model in models.values()]
    for model, (batch, length), notes in itertools.chain(shapes, _compiled(models[half], rows)):
        ids = torch.randint(5, plan["model"].vocab_size, (batch, length), device=device)
        row = {"dtype": str(model.dtype)[6:], "batch": batch, "length": length} | notes
        try:
            row |= _rows({"call": (functools.partial(_forward, model=model), {"ids": ids})}, items=batch)["call"]
        except Exception as error:  # too little memory, no compiler: the rest of the report still counts
            rows.append(row | {"failed": f"{error!r:.200}", "share": None})
            continue
        row["TFLOP/s"] = flops(plan["model"], length, batch) / row["ms"] / 1e9
        rows.append(row | {"share": promised and row["TFLOP/s"] / promised[row["dtype"] == "float32"]})
    return rows


def _compiled(model, rows: list[dict]):
    """One more thing to measure when all the others are done: the best shape with torch.compile."""
    best = max(rows, key=lambda row: row.get("TFLOP/s", 0))
    yield torch.compile(model), (best["batch"], best["length"]), {"compiled": True}


def _sentences(device: str, plan: dict, half) -> list[dict]:
    """`embed` on real sentences, one token a word, tokenising included, against the naive loop: texts/s."""
    texts = embedding.sentences()["text"].tolist()
    words = sorted({word for text in texts for word in re.findall(r"\w+|[^\w\s]", text.lower())})
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
        (Path(folder) / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
        tokenizer = BertTokenizer.from_pretrained(folder)
    model, limit = _model(plan["model"], device), plan["model"].max_position_embeddings

    def naive(texts):
        for start in range(0, len(texts), 8):
            padded = tokenizer(texts[start : start + 8], padding="max_length", max_length=limit, return_tensors="pt")
            with torch.inference_mode():
                model(**padded.to(device)).last_hidden_state.mean(1).cpu()

    rows = _rows({"naive": (naive, {"texts": texts})}, items=len(texts))
    for dtype, budget in itertools.product(("float32", str(half)[6:]), plan["budgets"]):
        call = functools.partial(embedding.embed, model=model, tokenizer=tokenizer, max_tokens=budget, precision=dtype)
        more = {"texts": texts * plan["copies"]}
        rows |= _rows({f"embed, {dtype}, {budget} tokens": (call, more)}, items=len(more["texts"]))
    return [{"arm": arm} | row for arm, row in rows.items()]


def _against_cpu(device: str, plan: dict) -> list[dict]:
    """The CPU with two threads against the card, from ids on the CPU to results on the CPU: where does a card pay?"""
    rows = []
    for config, (batch, length) in plan["against_cpu"]:
        ids = {"ids": torch.randint(5, config.vocab_size, (batch, length))}
        cpu, card = (functools.partial(_forward, model=_model(config, place)) for place in ("cpu", device))
        took = _rows({"CPU": (cpu, ids), "card": (lambda ids, card=card: card(ids).cpu(), ids)}, threads=2)
        rows.append(_shape(config, batch, length) | {"CPU ms": took["CPU"]["ms"], "card ms": took["card"]["ms"]})
    return rows


def main(target: Path = RECORDED) -> int:
    """Measure and write the report, whole or not at all; 1 where there is no CUDA."""
    if not (cuda := machine.cuda_status()).available:
        print(f"The report needs a CUDA device: {cuda.reason}", file=sys.stderr)
        return 1
    result = _round(report())
    bench.write(target, result)
    print(json.dumps(result["summary"], indent=1), f"\nwritten to {target}: {target.stat().st_size / 1000:.0f} kB")
    return 0
