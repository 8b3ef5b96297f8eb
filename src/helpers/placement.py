"""Where a model's tensors are: choose a device, move everything there, prove it, read the errors (notebook 01).

Computation happens where the tensors live, so every function here asks the tensors themselves, never a global variable
or another model. Torch's stand-in device "meta" (shapes without data) is a device like any other.
"""

import copy
import dataclasses
import os
import re
import types
import warnings
import weakref
from collections import UserDict
from collections.abc import Iterator
from typing import Any

from helpers import machine

import pandas as pd
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

ACCEPTED = (
    "'auto', 'cpu', 'cuda', 'cuda:0', 'cuda:1', ..., 'mps', 'meta', a torch.device, 0, 1, ... (a card) or -1 (cpu)"
)
_announced = weakref.WeakSet()


def resolve_device(spec: Any = None, *, counts: dict[str, int] | None = None) -> torch.device:
    """The torch.device that `spec` asks for; an explicit request is met or refused, never replaced by the CPU.

    None and "auto" take the best device there is (cuda, then mps, then cpu). A whole number n means card n ("cuda:n")
    and -1 the CPU, as in transformers' pipelines. `counts`, for example {"cuda": 2, "mps": 0}, is how many devices of
    each type there are; torch is asked by default. Raises ValueError for what is no device name (the text lists the
    accepted ones) and RuntimeError for a device that this process does not have (the text says how many it has).
    """
    if counts is None:
        cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
        counts = {"cuda": cuda, "mps": int(torch.backends.mps.is_available())}
    if spec is None or spec == "auto":
        return torch.device(next((f"{kind}:0" for kind in ("cuda", "mps") if counts.get(kind)), "cpu"))
    number = isinstance(spec, int) and not isinstance(spec, bool)
    text = "cpu" if number and spec == -1 else f"cuda:{spec}" if number else str(spec)
    known = re.fullmatch(r"(cpu|meta)(?::0)?|(cuda|mps)(?::(0|[1-9]\d*))?", text)
    if not known or not (number or isinstance(spec, str | torch.device)):
        likely = re.sub(r"^(?=\d+$)", "cuda:", re.sub(r"\s", "", text).lower()).replace("gpu", "cuda")
        hint = f" (did you mean {likely!r}?)" if re.fullmatch(r"(cpu|cuda|mps)(:\d+)?", likely) else ""
        raise ValueError(f"{spec!r} is not the name of a device{hint}. Accepted: {ACCEPTED}.")
    if known[1]:
        return torch.device(known[1])
    kind, index = known[2], int(known[3] or 0)
    there = counts.get(kind, 0)
    if index < there:
        return torch.device(kind, index)
    if kind == "mps":
        raise RuntimeError(f"{spec!r} was asked for, but {there} MPS devices are visible: MPS is the GPU of a Mac.")
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    why = f"use 'cuda:0' to 'cuda:{there - 1}'" if there else machine.cuda_status().reason.rstrip(".")
    raise RuntimeError(
        f"{spec!r} was asked for, but this process sees {there} CUDA device{'s' * (there != 1)}: {why}. "
        f"CUDA_VISIBLE_DEVICES is {'not set' if mask is None else repr(mask)}; the cards it makes visible are "
        "renumbered from 0, whatever nvidia-smi calls them, and it counts only when set before torch starts CUDA."
    )


def _walk(name: str, value: Any, seen: set[int], depth: int = 0) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Yields (name, kind, tensor) of every tensor that Python can reach from `value`; registered ones come first."""
    if id(value) in seen or depth > 8:  # the depth stops a walk through objects that hold half the program
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield name, "plain attribute", value
    elif isinstance(value, nn.Module):
        modules = list(value.named_modules(prefix=name))
        for prefix, module in modules:
            seen.add(id(module))
            for key, tensor in {**module._parameters, **module._buffers}.items():
                if tensor is not None and (depth == 0 or id(tensor) not in seen):
                    seen.add(id(tensor))
                    kind = "parameter" if key in module._parameters else "buffer"
                    kind = "non-persistent buffer" if key in module._non_persistent_buffers_set else kind
                    yield f"{prefix}.{key}".lstrip("."), "plain attribute" if depth else kind, tensor
        for prefix, module in modules:
            for key, held in vars(module).items():
                if key not in ("_parameters", "_buffers", "_modules"):
                    yield from _walk(f"{prefix}.{key}".lstrip("."), held, seen, depth + 1)
    elif isinstance(value, dict | UserDict):
        for key, held in value.items():
            yield from _walk(f"{name}[{key!r}]" if name else str(key), held, seen, depth + 1)
    elif isinstance(value, list | tuple | set | frozenset):
        for index, held in enumerate(value):
            yield from _walk(f"{name}[{index}]", held, seen, depth + 1)
    elif hasattr(value, "__dict__") and not callable(value) and not isinstance(value, types.ModuleType):
        for key, held in vars(value).items():
            yield from _walk(f"{name}.{key}".lstrip("."), held, seen, depth + 1)


def audit(model: nn.Module) -> pd.DataFrame:
    """Every tensor of `model`, one row each: name, kind, device, dtype, shape, bytes, note.

    kind: "parameter", "buffer", "non-persistent buffer" (not in the state dict) or "plain attribute": a tensor kept
    outside PyTorch's registers, also inside lists, dicts, objects and unregistered modules, which `.to()` leaves where
    it is. Tied tensors count once: the later ones have 0 bytes. Tensors hidden in closures cannot be seen.
    """
    rows, first = [], {}
    for name, kind, tensor in _walk("", model, set()):
        try:
            address = tensor.data_ptr()
        except RuntimeError:  # a tensor without memory of its own
            address = 0
        owner = first.setdefault((tensor.device, address) if address else id(tensor), name)
        note = ["stays behind"] if kind == "plain attribute" else []
        note += [f"shares memory with {owner}"] * (owner != name) + ["no data"] * tensor.is_meta
        size = tensor.numel() * tensor.element_size() if owner == name else 0
        dtype = str(tensor.dtype).removeprefix("torch.")
        rows.append((name, kind, str(tensor.device), dtype, tuple(tensor.shape), size, ", ".join(note)))
    return pd.DataFrame(rows, columns=["name", "kind", "device", "dtype", "shape", "bytes", "note"])


def left_behind(model: nn.Module, device: Any) -> list[str]:
    """Names of all tensors of `model`, plain attributes included, that are not on `device`."""
    table = audit(model)
    return table["name"][table["device"] != str(resolve_device(device))].tolist()


def device_of(model: nn.Module) -> torch.device:
    """The one device that all parameters and buffers of `model` are on; RuntimeError if there are several or none."""
    table = audit(model)
    counts = table["device"][table["kind"] != "plain attribute"].value_counts()
    if len(counts) == 1:
        return torch.device(counts.index[0])
    raise RuntimeError(f"a model's tensors should be on one device; of this one there are {counts.to_dict() or 'none'}")


def move(obj: Any, device: Any) -> Any:
    """`obj` with every tensor in it on `device`: use what is returned, `model = move(model, device)`.

    Modules move in place, as in PyTorch; tensors and containers (dict, list, tuple, namedtuple, set, dataclass,
    BatchEncoding, ModelOutput, nested at will) come back as new ones and the old stay as they were; anything else is
    returned as it is. Warns about plain tensor attributes that a module leaves behind. Raises RuntimeError, before
    anything moved, for tensors without data, and TypeError for an optimizer, which has to be built after the move.
    """
    target = resolve_device(device)
    if target.type != "meta" and (empty := [n or "this tensor" for n, _, t in _walk("", obj, set()) if t.is_meta]):
        raise RuntimeError(
            f"without data, being on the meta device: {', '.join(empty[:8])}{', ...' * (len(empty) > 8)}. Load these "
            "or compute them again (a buffer outside the state dict is never loaded), then move. to_empty() is no way "
            "out: it gives them memory, not values."
        )
    return _moved(obj, target)


def _moved(obj: Any, target: torch.device) -> Any:
    if isinstance(obj, nn.Module):
        obj.to(target)
        if behind := left_behind(obj, target):
            text = f"stayed behind, being neither parameter nor buffer: {', '.join(behind)}; use register_buffer()"
            warnings.warn(text, stacklevel=3)
        return obj
    if isinstance(obj, torch.Tensor | PackedSequence):
        return obj.to(target)
    if isinstance(obj, torch.optim.Optimizer):
        raise TypeError("an optimizer cannot be moved: move the model, then build the optimizer, then load its state")
    if isinstance(obj, list | tuple | set | frozenset):
        parts = [_moved(part, target) for part in obj]
        return obj._make(parts) if hasattr(obj, "_make") else type(obj)(parts)
    if isinstance(obj, dict | UserDict):  # before dataclasses: a ModelOutput is both
        new = copy.copy(obj)
        for key, part in obj.items():
            new[key] = _moved(part, target)
        return new
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        new = copy.copy(obj)
        for field in dataclasses.fields(obj):
            object.__setattr__(new, field.name, _moved(getattr(obj, field.name), target))
        return new
    return obj


def check_call(model: nn.Module, inputs: Any) -> torch.device:
    """The device of `model`, the one about to be called; RuntimeError if `inputs` are not on it, too.

    `inputs` is a tensor, or a dict, BatchEncoding, list ... of them. The error names the inputs and the parameter that
    disagree and says which side did not move.
    """
    device = device_of(model)
    if wrong := [(name or "inputs", t.device) for name, _, t in _walk("", inputs, set()) if t.device != device]:
        strays = ", ".join(f"input {name!r} is on {at}" for name, at in wrong)
        name = next(iter([name for name, _ in model.named_parameters()] or ["buffers"]))
        side = _stayed("input", str(wrong[0][1]), str(device))
        raise RuntimeError(f"{strays}; the model's {name!r} is on {device}. {side}")
    return device


def call(model: nn.Module, inputs: Any) -> Any:
    """`model(**inputs)` (`model(inputs)` for a tensor) with the inputs moved to the device of this very model.

    The first call of each model prints the device that computes, and a better one that stands idle.
    """
    device, best = device_of(model), resolve_device()
    if model not in _announced:
        _announced.add(model)
        idle = f", while {best} stands idle: model.to('{best}') would use it"
        print(f"{type(model).__name__} computes on {device}{idle if device.type == 'cpu' != best.type else ''}")
    inputs = move(inputs, device)
    return model(**inputs) if isinstance(inputs, dict | UserDict) else model(inputs)


def check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Raises RuntimeError if `optimizer` updates tensors that are no longer `model`'s, or keeps its state elsewhere."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if held - set(names) and set(names) - held:
        raise RuntimeError(
            "the optimizer updates tensors that the model no longer uses, so training would change nothing: load the "
            "model, move it, and only then build the optimizer"
        )
    for parameter, state in optimizer.state.items():
        for key, value in state.items():  # Adam's step counter has no dimension and may stay on the CPU
            if isinstance(value, torch.Tensor) and value.dim() and value.device != parameter.device:
                raise RuntimeError(
                    f"{key!r} of {names.get(id(parameter), 'a parameter')} is on {value.device}, the parameter on "
                    f"{parameter.device}: build the optimizer after the move, then load_state_dict() moves its state"
                )


def _stayed(argument: str | None, at: str, rest: str) -> str:
    """Says which side did not move, given an operation's argument, its device and the device of the others."""
    is_input, is_weight = argument in ("input", "index", "indices", "mat1"), argument in ("weight", "bias", "mat2")
    if "cpu" not in (at.lower(), rest.lower()):
        return "Both have been moved, to different devices: choose one for all."
    if not is_input and not is_weight:
        return "Whatever is on cpu did not move: audit(model) and check_call(model, inputs) name it."
    if is_input == (at.lower() == "cpu"):
        return "The model moved and the inputs did not: move both, or neither."
    return "The inputs moved and the model did not: move both, or neither."


# How torch 1.0 to 2.13 word two devices in one operation: which argument, where it is, where the rest is.
_TWO_DEVICES = (
    r"but got (?P<arg>\w+) is on (?P<at>[\w:]+), different from other tensors on (?P<rest>[\w:]+)",
    r"at least two devices, (?P<rest>[\w:]+) and (?P<at>[\w:]+)!(?:.*for argument (?P<arg>\w+))?",
    r"Tensor for .*?'?(?P<arg>\w+)'? is on (?P<at>\w+),? .*?expected .*?on (?P<rest>\w+)",
    r"Expected object of \D+? (?P<rest>\w+) but got \D+? (?P<at>\w+) for argument #\d+ '(?P<arg>\w+)'",
    r"(?P<arg>indices) should be either on (?P<at>\w+) or on the same device as the indexed tensor \((?P<rest>[\w:]+)",
    r"(?P<arg>input)\(device='(?P<at>[\w:]+)'\) and weight\(device=(?P<rest>[\w:]+)",
    r"(?P<arg>)Tensor on device (?P<at>[\w:]+) is not on the expected device (?P<rest>[\w:]+)!",
)
_OTHER_ERRORS = {
    "must be on the current device": "An embedding's table and its indices (the token ids) are on different devices; "
    "this old text does not say which. Mostly the inputs moved and the model did not; check_call(model, inputs) says.",
    "same device|Placeholder storage|found one of them on device": "One operation met tensors on two devices (a Mac "
    "has two: the CPU and MPS). audit(model) and check_call(model, inputs) name what did not move.",
    "meta tensor|convert meta": "A tensor is on the meta device: a shape without data, not loaded and not computed. "
    "move() lists such tensors by name; to_empty() would only hide them behind garbage.",
    "invalid device ordinal": "There is no card of that number here. Cards that CUDA_VISIBLE_DEVICES makes visible are "
    "renumbered from 0; set it before torch starts CUDA.",
    "not compiled with|not linked with": "This build of torch cannot use that device: see machine.cuda_status().",
    "NVIDIA driver|No CUDA GPUs|when none is available": "torch finds no usable GPU: machine.cuda_status() says why.",
    "device type at start|invalid device string|string must not be empty|index must not be negative": "That is not the "
    "name of a device: resolve_device() lists those that are.",
    "deserialize object on": "The file was saved from a GPU: torch.load(..., map_location='cpu') reads it anywhere.",
    "to numpy": "NumPy reads the CPU's memory only: call .cpu() first.",
    "has no attribute 'to'": "A dict or list cannot move itself, its tensors can: use move(inputs, device).",
    "device-side assert|CUBLAS_STATUS": "Mostly not placement: a token id or label is out of range, or memory ran out. "
    "The same call on the CPU gives the true message; restart the kernel before you use the GPU again.",
    "out of memory": "The placement is right, the device is too small: take shorter texts or smaller batches.",
}


def explain(error: BaseException | str) -> str:
    """What a device error means and what to do, in a sentence or two; `error` is the exception or its text.

    Knows the wordings of torch 1.0 to 2.13. For other errors it says that it does not know them.
    """
    text = str(error)
    for wording in _TWO_DEVICES:
        if found := re.search(wording, text, re.DOTALL):
            argument, at, rest = found["arg"], found["at"], found["rest"]
            if argument == "indices":  # the text offers "cpu or ...", so they are on neither
                at = "another device"
            elif argument == "self" and re.search("index_select|embedding|addmm", text):
                argument = "weight"  # there it is the table or the bias
            what = repr(argument) if argument else "a tensor"
            return f"Two devices in one operation: {what} is on {at}, the rest on {rest}. {_stayed(argument, at, rest)}"
    for wording, meaning in _OTHER_ERRORS.items():
        if re.search(wording, text, re.IGNORECASE):
            return meaning
    return "Not a device error that this tutorial knows: read its last line, and check audit(model) all the same."
