"""Device placement: choose a device, move everything there, prove it (notebook 01).

Computation happens where the tensors are, so every function here asks the tensors themselves,
never a global variable or another model. The device "meta" (shapes without data) is one like any
other.
"""

import copy
import os
import re
import warnings
from collections import UserDict
from collections.abc import Iterator
from typing import Any

from helpers.core import tensors
from helpers.core.cuda import cuda_status
from helpers.lessons.device_errors import which_side_stayed
from helpers.models.inspection import announce_device
from helpers.recipes.device_placement import move_to

import pandas as pd
import torch
from torch import nn
from torch.nn.parameter import is_lazy

ACCEPTED = (
    "'auto', 'cpu', 'cuda', 'cuda:0', 'cuda:1', ..., 'mps', 'meta', a torch.device, 0, 1, ... "
    "(a GPU) or -1 (cpu)"
)


def resolve_device(spec: Any = None, *, counts: dict[str, int] | None = None) -> torch.device:
    """Return the device that is asked for; it is used or refused, never replaced by the CPU.

    Args:
        spec: None or "auto" takes the best device there is (cuda, then mps, then cpu). A whole
            number n means GPU n, and -1 the CPU, as in transformers' pipelines.
        counts: Pretends that there are so many devices, such as {"cuda": 2, "mps": 0}.

    Raises:
        ValueError: If it is not the name of a device; the text lists those that are.
        RuntimeError: If this process does not have the device; the text says how many it has.
    """
    if counts is None:
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        counts = {"cuda": gpus, "mps": int(torch.backends.mps.is_available())}
    if spec is None or (isinstance(spec, str) and spec == "auto"):
        best = [kind for kind in ("cuda", "mps") if counts.get(kind)]
        return torch.device(f"{best[0]}:0" if best else "cpu")
    if isinstance(spec, int) and not isinstance(spec, bool):
        spec = "cpu" if spec == -1 else f"cuda:{spec}"
    elif isinstance(spec, torch.device):
        spec = str(spec)
    known = isinstance(spec, str) and re.fullmatch(
        r"(cpu|meta)(?::0)?|(cuda|mps)(?::(0|[1-9]\d*))?", spec, re.A
    )
    if not known:
        raise ValueError(
            f"{spec!r} is not the name of a device{_likely(spec)}. Accepted: {ACCEPTED}."
        )
    if known[1]:
        return torch.device(known[1])
    kind, index = known[2], int(known[3] or 0)
    if index < counts.get(kind, 0):
        return torch.device(kind, index)
    raise RuntimeError(_absent(spec, kind, counts.get(kind, 0)))


def _likely(spec: Any) -> str:
    """Return a hint for names such as "gpu", "CUDA:0" and "cuda: 0"."""
    plain = re.sub(r"\s", "", str(spec)).lower().replace("gpu", "cuda")
    found = re.fullmatch(r"(cpu|meta|auto|cuda|mps|):?(\d*)", plain, re.ASCII)
    if not found or not plain:
        return ""
    kind = found[1] or "cuda"
    name = f"{kind}:{int(found[2])}" if found[2] and kind in ("cuda", "mps") else kind
    return f" (did you mean {name!r}?)"


def _absent(spec: str, kind: str, there: int) -> str:
    if kind != "cuda":
        return (
            f"{spec!r} was asked for, but {there} MPS devices are visible: it is a Mac's one GPU."
        )
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    why = f"use 'cuda:0' to 'cuda:{there - 1}'" if there else cuda_status().reason.rstrip(".")
    plural = "" if there == 1 else "s"
    return (
        f"{spec!r} was asked for, but this process sees {there} CUDA device{plural}: {why}. "
        f"CUDA_VISIBLE_DEVICES is {'not set' if mask is None else repr(mask)}; the GPUs it makes "
        "visible are renumbered from 0, whatever nvidia-smi calls them, and it counts only when "
        "set before torch starts CUDA."
    )


def audit(model: nn.Module) -> pd.DataFrame:
    """List every tensor of a model: name, kind, device, dtype, shape, bytes, note.

    The kinds are those of `core.tensors.walk`. Tied tensors count once: the later ones have 0
    bytes.
    """
    if not isinstance(model, nn.Module):  # a pipeline's tensors would all look like strays
        raise TypeError(f"audit takes a module, such as .model of a {type(model).__name__}")
    rows, first = [], {}
    for name, kind, tensor in tensors.walk(model):
        owner = first.setdefault(_memory(tensor), name)
        notes = {
            "stays behind": kind == "plain attribute",
            f"shares memory with {owner}": owner != name,
            "no data": tensor.is_meta,
            "not initialised": is_lazy(tensor),
        }
        note = ", ".join(text for text, holds in notes.items() if holds)
        shape = () if is_lazy(tensor) or tensor.is_nested else tuple(tensor.shape)
        dtype = str(tensor.dtype).removeprefix("torch.")
        size = tensors.nbytes(tensor) if owner == name else 0
        rows.append((name, kind, str(tensor.device), dtype, shape, size, note))
    return pd.DataFrame(rows, columns=["name", "kind", "device", "dtype", "shape", "bytes", "note"])


def _memory(tensor: torch.Tensor) -> Any:
    """Return what two tensors of the same memory have in common."""
    try:
        address = tensor.data_ptr()
    except (RuntimeError, ValueError):  # a tensor without memory of its own
        address = 0
    return (tensor.device, address) if address else id(tensor)


def left_behind(model: nn.Module, device: Any) -> list[str]:
    """List the tensors of a model that are elsewhere, by name, plain attributes included."""
    table = audit(model)
    return table["name"][table["device"] != str(resolve_device(device))].tolist()


def device_of(model: nn.Module) -> torch.device:
    """Return the one device that all parameters and buffers of a model are on.

    Raises:
        RuntimeError: If there are several, or none.
    """
    table = audit(model)[lambda rows: rows["kind"] != "plain attribute"].groupby("device")["name"]
    if len(table) == 1:
        return torch.device(next(iter(table.groups)))
    places = [f"{name!r} is on {at}" for at, name in table.first().items()]
    if not places:
        raise RuntimeError(
            "the model has no tensors (devices: none): it computes where its inputs are"
        )
    counts = table.size().to_dict()
    way = "; ".join([*places, "move() brings them together"])
    raise RuntimeError(f"the model's tensors are on several devices ({counts}): {way}")


def move(obj: Any, device: Any) -> Any:
    """Return a value with every tensor in it on a device; use what is returned.

    Modules move in place, as in PyTorch. Tensors, containers and objects that hold tensors come
    back as new ones, and the old ones stay as they were. What was shared stays shared. A warning
    names plain tensor attributes that a module leaves behind.

    Raises:
        RuntimeError: For tensors without data, before anything moved.
        TypeError: For an optimizer, which has to be built after the move.
    """
    target = resolve_device(device)
    empty = [name or "this tensor" for name, _, tensor in tensors.walk(obj) if tensor.is_meta]
    if empty and target.type != "meta":
        more = ", ..." if len(empty) > 8 else ""
        raise RuntimeError(
            f"without data, being on the meta device: {', '.join(empty[:8])}{more}. Load these or "
            "compute them again (a buffer outside the state dict is never loaded), then move. "
            "to_empty() does not help: it gives them memory, not values."
        )
    return _moved(obj, target, {})


def _moved(obj: Any, target: torch.device, done: dict[int, Any]) -> Any:
    """Move a value; `done` has what was met before, by id, so that sharing and cycles stay."""
    if id(obj) in done:
        return done[id(obj)]
    if isinstance(obj, torch.optim.Optimizer):
        message = "move the model, then build the optimizer, then load its state"
        raise TypeError(f"an optimizer cannot be moved: {message}")
    if isinstance(obj, Iterator):
        raise TypeError(f"a {type(obj).__name__} can be read only once: move(list(...), device)")
    if isinstance(obj, nn.Module):
        new = move_to(obj, target)
        if behind := left_behind(obj, target):
            text = f"stayed behind, being neither parameter nor buffer: {', '.join(behind)}"
            warnings.warn(f"{text}; use register_buffer()", stacklevel=3)
    elif isinstance(obj, torch.Tensor):
        new = move_to(obj, target)
    elif isinstance(obj, tuple | frozenset | set):
        parts = [_moved(part, target, done) for part in obj]
        new = obj._make(parts) if hasattr(obj, "_make") else type(obj)(parts)
    elif isinstance(obj, list | dict | UserDict):  # a ModelOutput's attributes follow its items
        done[id(obj)] = new = copy.copy(obj)
        for key in range(len(obj)) if isinstance(obj, list) else obj:
            new[key] = _moved(obj[key], target, done)
    elif next(tensors.walk(obj), None):  # dataclasses, caches and other objects with tensors
        done[id(obj)] = new = copy.copy(obj)
        for key, part in getattr(obj, "__dict__", {}).items():
            object.__setattr__(new, key, _moved(part, target, done))
    else:
        new = obj
    done[id(obj)] = new
    return new


def check_call(model: nn.Module, inputs: Any) -> torch.device:
    """Return the device of the model that is about to be called, if the inputs are there.

    Raises:
        RuntimeError: If they are not; it names the inputs and the parameter that disagree, and
            says which side did not move.
    """
    device = device_of(model)
    places = [(name or "inputs", tensor.device) for name, _, tensor in tensors.walk(inputs)]
    wrong = [place for place in places if place[1] != device]
    if wrong:
        strays = ", ".join(f"input {name!r} is on {at}" for name, at in wrong)
        name = next(iter(model.state_dict()))
        side = f"The other inputs are there: inputs = move(inputs, '{device}')."
        if len(wrong) == len(places):
            side = which_side_stayed("input", str(wrong[0][1]), str(device))
        raise RuntimeError(f"{strays}; the model's {name!r} is on {device}. {side}")
    return device


def call(model: nn.Module, inputs: Any) -> Any:
    """Run a model on inputs moved to its device: a mapping, a list or tuple, or one value.

    The first call of each model prints the device, and a better one that stands idle.
    """
    device = device_of(model)
    announce_device(model, device)
    inputs = move(inputs, device)
    if isinstance(inputs, dict | UserDict):
        return model(**inputs)
    return model(*inputs) if type(inputs) in (list, tuple) else model(inputs)


def check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Check that an optimizer, built before a move, still belongs to a model.

    Raises:
        RuntimeError: If it updates tensors that the model no longer uses, or keeps its state on
            another device than the parameter.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if held - set(names) and set(names) - held:
        raise RuntimeError(
            "the optimizer updates tensors that the model no longer uses, so training would "
            "change nothing: load the model, move it, and only then build the optimizer"
        )
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            # Adam's step counter has no dimension and may stay on the CPU.
            if isinstance(value, torch.Tensor) and value.dim() and value.device != parameter.device:
                name = names.get(id(parameter), "a parameter")
                raise RuntimeError(
                    f"{key!r} of {name} is on {value.device}, the parameter on "
                    f"{parameter.device}: build the optimizer after the move, then "
                    "load_state_dict() moves its state"
                )
