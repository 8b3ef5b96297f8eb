"""Peaks of a training step, interpolated from predictions made ahead."""

import functools
import json

from helpers.core import files

import numpy

GRID = files.DATA / "memory_grid.json"


POINTS = ((64, 128), (64, 256), (64, 512), (128, 256))


CLOSE = (
    0.07  # a hundred estimates (all models, batch 1 to 128, length 8 to 512) came to within this
)


MODELS = ("minilm", "bert-base", "scibert", "bert-large")


DTYPES = {
    "float32": {},
    "mixed precision": {"mixed_precision": True},
    "bfloat16 weights": {"dtype": "bfloat16"},
}


TERMS = (
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "inputs",
    "workspace",
    "allocator",
    "context",
)


MODES = ("inference", "training, AdamW", "training, SGD")


LEVERS = {
    "none": {},
    "checkpointing": {"checkpointing": True},
    "half of the layers frozen": {"freeze": "half"},
    "only the head trained": {"freeze": "body"},
    "LoRA, rank 8": {"lora": 8},
    "LoRA and checkpointing": {"lora": 8, "checkpointing": True},
}


def options(model: str, mode: str, dtype: str, lever: str) -> dict:
    """The options of `memory.predict_peak` for a choice in the explorer."""
    from helpers.models import assets

    if mode == "inference":
        return DTYPES[dtype] | {"mode": "inference"}
    chosen = DTYPES[dtype] | LEVERS[lever] | {"optimizer": "sgd" if "SGD" in mode else "adamw"}
    if chosen.get("freeze") == "half":
        chosen["freeze"] = assets.config(model).num_hidden_layers // 2
    return chosen


def estimate(model: str, mode: str, dtype: str, lever: str, batch: int, length: int):
    """The `memory.Peak` on a card for a choice, from the predictions made ahead.

    Exact at `POINTS`.
    """
    from helpers.lessons import memory

    lever, ahead = ("none", mode) if mode == "inference" else (lever, MODES[1])
    sizes = [[1, b, b * n, b * n * n] for b, n in POINTS]
    weights = numpy.linalg.solve(
        numpy.array(sizes, float).T, [1, batch, batch * length, batch * length**2]
    )
    phases = {}
    for phase, predicted in _grid()["|".join((model, ahead, dtype, lever))].items():
        terms = {name: max(round(float(weights @ values)), 0) for name, values in predicted.items()}
        if "SGD" in mode:  # its step is AdamW's without moments
            terms.pop("optimizer", None)
        phases[phase] = terms | {
            "workspace": memory.CUBLAS_WORKSPACE,
            "context": memory.CUDA_CONTEXT,
        }
    highest = max(phases, key=lambda phase: sum(phases[phase].values()))
    return memory.Peak(phases[highest], highest, memory.CUDA_ASSUMPTIONS, phases)


@functools.cache
def _grid() -> dict:
    return json.loads(GRID.read_text(encoding="utf-8"))["choices"]
