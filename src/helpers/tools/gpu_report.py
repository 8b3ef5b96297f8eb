"""What a GPU does with SciBERT: `python -m helpers gpu-report` measures it for notebook 07.

It needs CUDA and no network: the architectures are the true ones with random weights.
"""

import datetime
import functools
import gc
import itertools
import json
import sys
import time
from pathlib import Path

from helpers.core import cuda, files, machine, timing
from helpers.lessons import memory, training_step
from helpers.lessons.roofline import flops, peaks
from helpers.models import assets
from helpers.tools import bench

import torch
from transformers import BertConfig, BertModel

RECORDED = files.DATA / "gpu_report.json"
UNITS = "ms a call (median, quartiles), bytes, TFLOP/s"


def full_plan() -> dict:
    """Return everything that is measured; a test runs a smaller plan on the CPU."""
    levers = (
        {},
        {"mixed_precision": True},
        {"checkpointing": True},
        {"freeze": "body"},
        {"dtype": "bfloat16"},
        {"mode": "inference"},
        {"mode": "inference", "dtype": "bfloat16"},
    )
    models = [assets.config(name) for name in ("bert-base", "bert-large")]
    minilm, scibert = assets.config("minilm"), assets.config("scibert")
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 512}
    shallow = BertConfig(num_hidden_layers=2, **sizes)
    shapes = itertools.product((1, 8, 64, 256, 1024), (16, 32, 64, 128, 256, 512))
    small = ((1, 8), (1, 128), (16, 32))
    return {
        "memory": list(itertools.product(models, ((8, 128), (4, 512), (32, 64)), levers)),
        "model": scibert,
        "shapes": [(batch, length) for batch, length in shapes if batch * length <= 65536],
        "against_cpu": list(itertools.product((shallow, minilm, scibert), small)),
    }


def recorded() -> dict | None:
    """Return the report that is part of this package, or None if no GPU has made one yet."""
    return json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else None


def report(device: str = "cuda", plan: dict | None = None) -> dict:
    """Measure a plan, by default the full one; "cpu" is to try it without a GPU."""
    start, gpu, half = time.perf_counter(), machine.cpu_name(), torch.bfloat16
    plan = plan or full_plan()
    if device == "cuda":
        gpu, half = torch.cuda.get_device_name(), machine.choose_dtype(torch.device(device))
    names = ("16-bit TFLOP/s", "float32 TFLOP/s", "GB/s")
    result = {
        "gpu": gpu,
        "machine": machine.describe_machine(),
        "versions": machine.versions() | {"cuda": torch.version.cuda},
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "vendor_peaks": dict(zip(names, peaks(gpu) or (), strict=False)),
        "weights": "random, in the true architectures",
        "16-bit": _name(half),
        "units": UNITS,
        "memory": [_memory(device, *case) for case in plan["memory"]],
        "throughput": _throughput(device, plan, half),
        "against_cpu": _against_cpu(device, plan),
    }
    return result | {"summary": _summary(result) | {"seconds": time.perf_counter() - start}}


def _summary(result: dict) -> dict:
    errors = sorted(row["error"] for row in result["memory"])
    slower = [row for row in result["against_cpu"] if row["GPU ms"] > row["CPU ms"]]
    return {
        "memory configurations": len(errors),
        "memory error, median and worst": [errors[len(errors) // 2], errors[-1]],
        "highest TFLOP/s": max(row.get("TFLOP/s", 0) for row in result["throughput"]),
        "slower than the CPU": slower,
    }


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _round(value):
    """Four figures are what such measurements hold."""
    return json.loads(json.dumps(value), parse_float=lambda number: float(f"{float(number):.4g}"))


def _rows(arms: dict, threads: int | None = None, items: int | None = None) -> dict[str, dict]:
    table = timing.compare(arms, rounds=6, threads=threads, items=items).table.set_index("arm")
    names = {"median ms": "ms", "25 % ms": "25 %", "75 % ms": "75 %", "items/s": "texts/s"}
    return table.rename(columns=names).filter(names.values()).to_dict("index")


def _shape(config, batch: int, length: int) -> dict:
    layers, width = config.num_hidden_layers, config.hidden_size
    return {"layers": layers, "width": width, "batch": batch, "length": length}


def _model(config, device: str, dtype=torch.float32) -> BertModel:
    with torch.device(device):
        return BertModel(config).to(dtype).eval()


@torch.inference_mode()
def _forward(ids, model):
    return model(input_ids=ids.to(model.device)).last_hidden_state


def _memory(device: str, config, shape: tuple[int, int], options: dict) -> dict:
    predicted = memory.predict_peak(config, *shape, device=device, **options).allocated
    gc.collect()
    with torch.device(device):  # builds the weights there at once
        step = training_step.Step(config, *shape, device=device, **options)
    parts = (step.run, step.model, step.optimizer, step.inputs)
    measured = memory.measure_peak(*parts, device=device).allocated
    sizes = {"predicted": predicted, "measured": measured, "error": abs(predicted / measured - 1)}
    return _shape(config, *shape) | {"options": options} | sizes


def _throughput(device: str, plan: dict, half) -> list[dict]:
    """Every shape in float32 and 16 bit."""
    config = plan["model"]
    models = [_model(config, device, dtype) for dtype in (torch.float32, half)]
    cases = itertools.product(plan["shapes"], models)
    return [_call(device, config, model, *shape) for shape, model in cases]


def _call(device: str, config, model, batch: int, length: int) -> dict:
    ids = torch.randint(5, config.vocab_size, (batch, length), device=device)
    row = {"dtype": _name(model.dtype), "batch": batch, "length": length}
    call = functools.partial(_forward, model=model)
    try:
        row |= _rows({"call": (call, {"ids": ids})}, items=batch)["call"]
    except torch.OutOfMemoryError as error:  # the rest of the report still counts
        return row | {"failed": f"{error!r:.200}"}
    row["TFLOP/s"] = flops(config, length, batch) / row["ms"] / 1e9
    return row


def _against_cpu(device: str, plan: dict) -> list[dict]:
    """The CPU with two threads against the GPU, from ids on the CPU to results on the CPU."""
    rows = []
    for config, (batch, length) in plan["against_cpu"]:
        ids = {"ids": torch.randint(5, config.vocab_size, (batch, length))}
        cpu = functools.partial(_forward, model=_model(config, "cpu"))
        gpu = functools.partial(_forward, model=_model(config, device))
        arms = {"CPU": (cpu, ids), "GPU": (lambda ids, gpu=gpu: gpu(ids).cpu(), ids)}
        took = _rows(arms, threads=2)
        rows.append(_shape(config, batch, length) | {f"{n} ms": took[n]["ms"] for n in arms})
    return rows


def main(target: Path = RECORDED) -> int:
    """Measure and write the report in one step; returns 1 where there is no CUDA."""
    status = cuda.cuda_status()
    if not status.available:
        print(f"The report needs a CUDA device: {status.reason}", file=sys.stderr)
        return 1
    result = _round(report())
    bench.write(target, result)
    print(json.dumps(result["summary"], indent=1))
    print(f"written to {target}: {target.stat().st_size / 1000:.0f} kB")
    return 0
