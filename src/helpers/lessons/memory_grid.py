"""Peaks of a training step, interpolated from predictions made ahead."""

import functools
import json

from helpers.core import files
from helpers.lessons import memory
from helpers.models import assets

import numpy

GRID = files.DATA / "memory_grid.json"
POINTS = ((64, 128), (64, 256), (64, 512), (128, 256))
CLOSE = 0.07  # so far off was the worst of 100 estimates (all models, batch 1-128, length 8-512)
MODELS = ("minilm", "bert-base", "scibert", "bert-large")
MODES = ("inference", "training, AdamW", "training, SGD")
TERMS = (*memory.ORDER, "workspace", "allocator", "context")
DTYPES = {
    "float32": {},
    "mixed precision": {"mixed_precision": True},
    "bfloat16 weights": {"dtype": "bfloat16"},
}
LEVERS = {
    "none": {},
    "checkpointing": {"checkpointing": True},
    "half of the layers frozen": {"freeze": "half"},
    "only the head trained": {"freeze": "body"},
    "LoRA, rank 8": {"lora": 8},
    "LoRA and checkpointing": {"lora": 8, "checkpointing": True},
}


def options(model: str, mode: str, dtype: str, lever: str) -> dict:
    """Return the options of `memory.predict_peak` for a choice in the explorer."""
    if mode == "inference":
        return DTYPES[dtype] | {"mode": "inference"}
    chosen = DTYPES[dtype] | LEVERS[lever] | {"optimizer": "sgd" if "SGD" in mode else "adamw"}
    if chosen.get("freeze") == "half":
        chosen["freeze"] = assets.config(model).num_hidden_layers // 2
    return chosen


def estimate(model: str, mode: str, dtype: str, lever: str, batch: int, length: int) -> memory.Peak:
    """Return the peak on a GPU for a choice; it is exact at `POINTS`.

    A term is a + b * batch + c * batch * length + d * batch * length**2; four points give all.
    """
    lever, ahead = ("none", mode) if mode == "inference" else (lever, MODES[1])
    sizes = [[1, b, b * n, b * n * n] for b, n in POINTS]
    here = [1, batch, batch * length, batch * length**2]
    weights = numpy.linalg.solve(numpy.array(sizes, float).T, here)
    phases = {}
    for phase, predicted in _grid()["|".join((model, ahead, dtype, lever))].items():
        terms = {name: max(round(float(weights @ values)), 0) for name, values in predicted.items()}
        if "SGD" in mode:  # its step is AdamW's without moments
            terms.pop("optimizer", None)
        own = {"workspace": memory.CUBLAS_WORKSPACE, "context": memory.CUDA_CONTEXT}
        phases[phase] = terms | own
    highest = max(phases, key=lambda phase: sum(phases[phase].values()))
    return memory.Peak(phases[highest], highest, memory.CUDA_ASSUMPTIONS, phases)


@functools.cache
def _grid() -> dict:
    return json.loads(GRID.read_text(encoding="utf-8"))["choices"]
