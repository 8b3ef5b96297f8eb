"""Checks for the exercises of notebook 01 (device placement)."""

from collections.abc import Callable
from typing import Any

from helpers.core import tensors
from helpers.exercises import exercise
from helpers.lessons import placement

import torch
from torch import nn
from transformers import BatchEncoding


@exercise
def check_01_1(answer: type[nn.Module]) -> str | None:
    """A module class with `linear` and a `scale` of 0.5s that moves and no checkpoint needs."""
    if not (isinstance(answer, type) and issubclass(answer, nn.Module)):
        return "the answer is the class itself, a subclass of nn.Module: answer_1 = Halved"
    module, x = answer(), torch.arange(8.0).reshape(2, 4)
    with torch.no_grad():
        if not torch.allclose(module(x), module.linear(x) * 0.5):
            return "on the CPU it no longer computes linear(x) * 0.5"
    kinds = {name: kind for name, kind, _ in tensors.walk(module) if "linear." not in name}
    if not kinds:
        return "scale should stay a tensor of the module"
    # Inside another module, as in a real model: a .to() of the answer's own is not called there.
    if placement.left_behind(nn.Sequential(module).to("meta"), "meta"):
        return "scale stayed behind when the model moved: only parameters and buffers move"
    if "parameter" in kinds.values():
        return "scale is a parameter now, which is saved and trained: a buffer is neither"
    if "buffer" in kinds.values():
        return "scale is in the state dict, so checkpoints need it: persistent=False keeps it out"
    return None


@exercise
def check_01_2(answer: Callable[[Any, Any], Any]) -> str | None:
    """A function (thing, device) that returns the thing moved and leaves the old one alone."""
    ids = torch.tensor([[1, 2]])
    old = {"encodings": [BatchEncoding({"input_ids": ids})], "pair": (ids, None), "name": "cuda"}
    new = answer(old, "meta")
    kinds = {key: type(value) for key, value in old.items()}
    if {key: type(value) for key, value in new.items()} != kinds:
        return f"the containers came back as others: {new!r:.80}"
    encoding, (moved, nothing) = new["encodings"][0], new["pair"]
    if nothing is not None or new["name"] != "cuda":
        return "None and texts hold no tensor and have to come back as they are"
    if moved.device.type != "meta":
        return "the tensor in the tuple is still on cpu: is the result of .to() used?"
    if not isinstance(encoding, BatchEncoding) or encoding["input_ids"].device.type != "meta":
        return (
            f"in the list should be a BatchEncoding on meta, not {encoding!r:.80}: a BatchEncoding "
            "is a UserDict, not a dict, so isinstance(thing, dict) misses it"
        )
    if placement.left_behind(old, "cpu"):
        return (
            "the thing that was handed in has changed: make new containers. A BatchEncoding's "
            "own .to() works in place"
        )
    return None
