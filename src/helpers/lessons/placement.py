"""Device placement: choose a device, move everything there, prove it (notebook 01).

Computation happens where the tensors are, so every function here asks the tensors themselves,
never a global variable or another model.
"""

import copy
import re
import warnings
from collections import UserDict
from typing import Any

from helpers.core import machine, tensors
from helpers.lessons.device_errors import which_side_stayed
from helpers.recipes.device_placement import move_to

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

ACCEPTED = (
    "'auto', 'cpu', 'cuda', 'cuda:0', 'cuda:1', ..., 'mps', 'meta', a torch.device, 0, 1, ... "
    "(a GPU) or -1 (cpu)"
)


def resolve_device(spec: Any = "auto") -> torch.device:
    """Return the device that is asked for; it is used or refused, never replaced by the CPU.

    Args:
        spec: "auto" takes the best of `machine.devices()` (cuda, then mps, then cpu). A whole
            number n means GPU n, and -1 the CPU, as in transformers' pipelines.

    Raises:
        ValueError: If it is not the name of a device; the text lists those that are.
        RuntimeError: If this process does not have the device; the text says how many it has.
    """
    gpus, mps = machine.cuda_devices(), torch.backends.mps.is_available()
    counts = {"cuda": len(gpus), "mps": int(mps)}
    name = str(spec) if isinstance(spec, str | torch.device) else ""
    if name == "auto":
        name = machine.devices()[0]
    if type(spec) is int and spec >= -1:
        name = "cpu" if spec == -1 else f"cuda:{spec}"
    found = re.fullmatch(r"(cpu|meta)|(cuda|mps)(?::(\d+))?", name, re.ASCII)
    if not found:
        raise ValueError(f"{spec!r} is not the name of a device. Accepted: {ACCEPTED}.")
    kind, index = found[2] or found[1], int(found[3] or 0)
    if kind in ("cpu", "meta"):
        return torch.device(kind)
    if index >= counts[kind]:
        raise RuntimeError(
            f"{spec!r} was asked for, but this process sees {counts[kind]} {kind} "
            "device(s), numbered from 0 (CUDA_VISIBLE_DEVICES can hide GPUs)"
        )
    if kind == "cuda" and not gpus[f"cuda:{index}"]:
        raise RuntimeError(f"this build of torch has no code for the GPU that {spec!r} means")
    return torch.device(kind, index)


def left_behind(value: Any, device: Any) -> list[str]:
    """List the tensors of a model or batch that are elsewhere, plain attributes included."""
    target = resolve_device(device)
    return [name for name, _, tensor in tensors.walk(value) if tensor.device != target]


def device_of(model: nn.Module) -> torch.device:
    """Return the one device of a model's tensors; where accelerate placed it, that of its inputs.

    Raises:
        RuntimeError: If there are several, or none.
    """
    for at in placed_by_accelerate(model).values():
        if at != "disk":
            return torch.device(at)
    places = {}
    for name, kind, tensor in tensors.walk(model):
        if kind != "plain attribute":
            places.setdefault(tensor.device, []).append(name)
    if len(places) == 1:
        return next(iter(places))
    found = [f"{len(names)} on {at}, such as {names[0]!r}" for at, names in places.items()]
    raise RuntimeError(f"not one device for the model's tensors: {'; '.join(found) or 'none'}")


def placed_by_accelerate(model: Any) -> dict[str, str]:
    """Return where the parts of a model that accelerate placed compute, the inputs' part first."""
    placed, spread = {}, getattr(model, "hf_device_map", None) or {}
    for root in (leaf for leaf in tree_leaves(model) if isinstance(leaf, nn.Module)):
        for name, module in root.named_modules():
            hook = getattr(module, "_hf_hook", None)
            for one in getattr(hook, "hooks", (hook,)):
                if (at := getattr(one, "execution_device", None)) is not None:
                    placed[name] = str(torch.device(at))
    spread = {name: f"cuda:{at}" if type(at) is int else str(at) for name, at in spread.items()}
    return placed or (spread if len(set(spread.values())) > 1 else {})


def move(obj: Any, device: Any) -> Any:
    """Return a value with every tensor in it on a device; use what is returned.

    Modules move in place, as in PyTorch. Tensors, dicts, lists and tuples come back as new ones.
    A warning names what stays behind: a module's plain attributes, tensors in other objects.

    Raises:
        RuntimeError: For a model that accelerate placed and for tensors without data, before
            anything moved; for quantized weights that refuse to move.
        TypeError: For an optimizer, which has to be built after the move.
    """
    target = resolve_device(device)
    if placed := placed_by_accelerate(obj):
        shown = ", ".join(f"{name or 'all'}: {at}" for name, at in list(placed.items())[:6])
        raise RuntimeError(
            f"accelerate placed this model ({shown}) and moves its weights at each call: call it "
            "as it is, with inputs on device_of(model), or load it without device_map and move it"
        )
    empty = [name or "this tensor" for name, _, tensor in tensors.walk(obj) if tensor.is_meta]
    if empty and target.type != "meta":
        raise RuntimeError(
            f"without data, being on the meta device: {', '.join(empty[:8])}. Load these or "
            "compute them again (a buffer outside the state dict is never loaded), then move. "
            "to_empty() does not help: it gives them memory, not values."
        )
    new = _moved(obj, target)
    behind = {n: kind for n, kind, tensor in tensors.walk(new) if tensor.device != target}
    if fixed := [name for name, kind in behind.items() if kind != "plain attribute"]:
        raise RuntimeError(
            f"did not move: {', '.join(fixed[:8])}. Quantized weights belong to their device: load "
            "the model there (bitsandbytes), or quantize the float model there"
        )
    if behind:
        text = f"stayed behind, being neither parameter nor buffer: {', '.join(behind)}"
        warnings.warn(f"{text}; a module's need register_buffer()", stacklevel=2)
    return new


def _moved(obj: Any, target: torch.device) -> Any:
    if isinstance(obj, torch.optim.Optimizer):
        raise TypeError("move the model, then build the optimizer, then load its state")
    if isinstance(obj, nn.Module | torch.Tensor):
        return move_to(obj, target)
    if isinstance(obj, list | tuple):
        parts = [_moved(part, target) for part in obj]
        return obj._make(parts) if hasattr(obj, "_make") else type(obj)(parts)
    if isinstance(obj, dict | UserDict):
        new = copy.copy(obj)
        for key, part in obj.items():
            new[key] = _moved(part, target)
        return new
    return obj


def check_call(model: nn.Module, inputs: Any) -> torch.device:
    """Return the device of the model that is about to be called, if the inputs are there.

    Raises:
        RuntimeError: If not; it names the inputs and the parameter that disagree, and the side
            that did not move.
    """
    device = device_of(model)
    places = [(name or "inputs", tensor.device) for name, _, tensor in tensors.walk(inputs)]
    wrong = [place for place in places if place[1] != device]
    if wrong:
        strays = ", ".join(f"input {name!r} is on {at}" for name, at in wrong)
        side = f"The other inputs are there: inputs = move(inputs, '{device}')."
        if len(wrong) == len(places):
            side = which_side_stayed("input", str(wrong[0][1]), str(device))
        name = next(iter(model.state_dict()), "buffer")
        raise RuntimeError(f"{strays}; the model's {name!r} is on {device}. {side}")
    return device
