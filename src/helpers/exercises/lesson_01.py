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
        return "no tensor is left besides linear: keep scale as a tensor of the module"
    # Inside another module, as in a real model: a .to() of the answer's own is not called there.
    if behind := placement.left_behind(nn.Sequential(module).to("meta"), "meta"):
        names = ", ".join(name.removeprefix("0.") for name in behind)
        return (
            f"{names} stayed behind when a model that holds this module moved: only parameters "
            "and buffers move"
        )
    if "parameter" in kinds.values():
        return (
            "scale is a parameter now: it would be saved, and an optimizer would train it unless "
            "requires_grad is off; a buffer says what it is"
        )
    if "buffer" in kinds.values():
        return (
            "scale is in the state dict, so a checkpoint without it no longer loads: "
            "persistent=False keeps it out"
        )
    return None


@exercise
def check_01_2(answer: Callable[[Any, Any], Any]) -> str | None:
    """A function (thing, device) that returns the thing moved and leaves the old one alone."""
    ids = torch.tensor([[1, 2]])
    old = {"encodings": [BatchEncoding({"input_ids": ids})], "pair": (ids, None), "name": "cuda"}
    new = answer(old, "meta")
    if not isinstance(new, dict) or list(new) != list(old):
        return f"for a dict with the keys {list(old)} it returned {new!r:.80}"
    for key, value in old.items():
        if type(new[key]) is not type(value) or len(new[key]) != len(value):
            return f"{key!r} came back as something else: {new[key]!r:.80}"
    encoding = new["encodings"][0]
    if not isinstance(encoding, BatchEncoding):
        return f"the BatchEncoding in the list came back as something else: {encoding!r:.80}"
    if new["pair"][1] is not None or new["name"] != "cuda":
        return "None and texts hold no tensor and have to come back as they are"
    if new["pair"][0].device.type != "meta":
        return "the tensor in the tuple is still on cpu: is the result of .to() used?"
    if encoding["input_ids"].device.type != "meta":
        return (
            "the tensor in the BatchEncoding is still on cpu: a BatchEncoding is a UserDict, not a "
            "dict, so isinstance(thing, dict) misses it"
        )
    if old["encodings"][0]["input_ids"].device.type != "cpu":
        return (
            "the old BatchEncoding has moved as well: its .to() works in place, so make a new one"
        )
    if placement.left_behind(old, "cpu"):
        return "the old dict or list has been changed: build a new one"
    return None


@exercise
def check_01_3(answer: Callable[[nn.Module, Any], torch.optim.Optimizer]) -> str | None:
    """A function (model, device) that moves the model and returns an optimizer that trains it."""
    model = nn.Linear(4, 2)
    optimizer = answer(model, "meta")
    if not isinstance(optimizer, torch.optim.Optimizer):
        return f"it should return the optimizer, not {type(optimizer).__name__}"
    if model.weight.device.type != "meta":
        return f"the model was not moved: it is still on {model.weight.device}"
    try:
        placement.check_optimizer(optimizer, model)
    except RuntimeError:
        return (
            "the optimizer was built before the move and still holds the old parameters: move "
            "first, and only then build the optimizer"
        )
    model = nn.Linear(4, 2)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = answer(model, "cpu")
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    if any(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)):
        return "a step of the optimizer left some of the model's parameters as they were"
    return None
