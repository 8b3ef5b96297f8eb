"""Where a model's tensors are.

Choose a device, move everything there, prove it, read the errors (notebook 01).

Computation happens where the tensors live, so every function here asks the tensors themselves,
never a global variable or another model. Torch's stand-in device "meta" (shapes without data) is a
device like any other.
"""

import copy
import functools
import itertools
import os
import re
import types
import warnings
import weakref
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Iterator, Set
from numbers import Integral
from typing import Any

from helpers.core.cuda import cuda_status
from helpers.lessons.device_errors import _stayed

import pandas as pd
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.rnn import PackedSequence
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

ACCEPTED = "'auto', 'cpu', 'cuda', 'cuda:0', 'cuda:1', ..., 'mps', 'meta', a torch.device, 0, 1, ... (a card) or -1 (cpu)"
_announced = weakref.WeakSet()


def resolve_device(spec: Any = None, *, counts: dict[str, int] | None = None) -> torch.device:
    """The torch.device that `spec` asks for.

    An explicit request is met or refused, never replaced by the CPU.

    None and "auto" take the best device there is (cuda, then mps, then cpu). A whole number n means
    card n ("cuda:n") and -1 the CPU, as in transformers' pipelines. `counts`, for example {"cuda":
    2, "mps": 0}, pretends that there are so many devices of each type. Raises ValueError for what
    is no device name (the text lists the accepted ones) and RuntimeError for a device that this
    process does not have (the text says how many it has).
    """
    if counts is None:
        cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
        counts = {"cuda": cuda, "mps": int(torch.backends.mps.is_available())}
    if spec is None or (isinstance(spec, str) and spec == "auto"):
        return torch.device(
            next((f"{kind}:0" for kind in ("cuda", "mps") if counts.get(kind)), "cpu")
        )
    number = isinstance(spec, Integral) and not isinstance(spec, bool)  # NumPy's whole numbers, too
    text = "cpu" if number and spec == -1 else f"cuda:{spec}" if number else str(spec)
    known = re.fullmatch(r"(cpu|meta)(?::0)?|(cuda|mps)(?::(0|[1-9]\d*))?", text, re.ASCII)
    if not known or not (number or isinstance(spec, str | torch.device)):
        plain = re.sub(r"\s", "", text).lower().replace("gpu", "cuda")
        likely = re.fullmatch(r"(cpu|meta|auto|cuda|mps|):?(?:0*(\d+))?", plain, re.ASCII)
        kind, index = likely.groups() if likely else ("", None)
        named = f"{kind or 'cuda'}:{index}" if index and kind in ("", "cuda", "mps") else kind
        hint = f" (did you mean {named!r}?)" if named else ""
        raise ValueError(f"{spec!r} is not the name of a device{hint}. Accepted: {ACCEPTED}.")
    if known[1]:
        return torch.device(known[1])
    kind, index, there = known[2], int(known[3] or 0), counts.get(known[2], 0)
    if index < there:
        return torch.device(kind, index)
    if kind == "mps":
        raise RuntimeError(
            f"{spec!r} was asked for, but {there} MPS devices are visible: MPS is the one GPU of a Mac."
        )
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    why = f"use 'cuda:0' to 'cuda:{there - 1}'" if there else cuda_status().reason.rstrip(".")
    raise RuntimeError(
        f"{spec!r} was asked for, but this process sees {there} CUDA device{'s' * (there != 1)}: {why}. "
        f"CUDA_VISIBLE_DEVICES is {'not set' if mask is None else repr(mask)}; the cards it makes visible are "
        "renumbered from 0, whatever nvidia-smi calls them, and it counts only when set before torch starts CUDA."
    )


def _attributes(value: Any) -> dict[str, Any]:
    slots = [
        name
        for cls in type(value).__mro__
        for name in getattr(cls, "__slots__", ())
        if hasattr(value, name)
    ]
    return {name: getattr(value, name) for name in slots if name != "__dict__"} | getattr(
        value, "__dict__", {}
    )


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What `value` holds, each with its place: "[0]", "['key']" or ".attribute"."""
    if isinstance(value, PackedSequence):
        yield ".data", value.data  # its batch_sizes are on the CPU for good
    elif isinstance(
        value, dict | UserDict | types.MappingProxyType
    ):  # other mappings may be lazy: a disk's
        yield from ((f"[{key!r}]", held) for key, held in value.items())
    elif isinstance(value, list | tuple | Set | deque | UserList):
        yield from ((f"[{index}]", held) for index, held in enumerate(value))
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif not isinstance(value, type | types.ModuleType | types.FunctionType):
        yield from ((f".{key}", held) for key, held in _attributes(value).items())


def _walk(
    name: str, value: Any, seen: set[int], depth: int = 0
) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Yields (name, kind, tensor) of every tensor that Python can reach from `value`.

    Registered ones come first.
    """
    if (
        id(value) in seen or depth > 20
    ):  # the depth stops a walk through objects that hold half the program
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield name, "plain attribute", value
    elif isinstance(value, nn.Module):
        modules = list(value.named_modules(prefix=name))
        seen |= {id(module) for _, module in modules}
        for prefix, module in modules:
            for key, tensor in {**module._parameters, **module._buffers}.items():
                if tensor is not None and (depth == 0 or id(tensor) not in seen):
                    seen.add(id(tensor))
                    kind = "parameter" if key in module._parameters else "buffer"
                    kind = (
                        "non-persistent buffer"
                        if key in module._non_persistent_buffers_set
                        else kind
                    )
                    yield (
                        f"{prefix}.{key}".lstrip("."),
                        "plain attribute" if depth else kind,
                        tensor,
                    )
        for prefix, module in modules:
            tables = [
                vars(cls)
                for cls in type(module).__mro__
                if issubclass(cls, nn.Module) and cls is not nn.Module
            ]
            for key, held in ChainMap(vars(module), *tables).items():
                own = key in vars(module) or isinstance(held, torch.Tensor | list | tuple | dict)
                if own and key not in ("_parameters", "_buffers", "_modules"):
                    yield from _walk(f"{prefix}.{key}".lstrip("."), held, seen, depth + 1)
    else:
        for place, held in _parts(value):
            place = place if name else re.sub(r"^\['(.+)'\]$|^\.", r"\1", place)
            yield from _walk(name + place, held, seen, depth + 1)


def _bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's numbers.

    Of a quantized, nested or sparse one, those of the tensors it is made of.
    """
    if is_traceable_wrapper_subclass(tensor):
        return sum(_bytes(getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0])
    if tensor.is_sparse:
        return _bytes(tensor._indices()) + _bytes(tensor._values())
    return 0 if is_lazy(tensor) else tensor.numel() * tensor.element_size()


def audit(model: nn.Module) -> pd.DataFrame:
    """Every tensor of `model`, one row each: name, kind, device, dtype, shape, bytes, note.

    kind: "parameter", "buffer", "non-persistent buffer" (not in the state dict) or "plain
    attribute": a tensor kept outside PyTorch's registers, also inside lists, dicts, objects and
    unregistered modules, which `.to()` leaves where it is. Tied tensors count once: the later ones
    have 0 bytes. What closures and C++ objects (the packed weights of torch.ao's quantized layers)
    hide cannot be seen. Raises TypeError for what is no module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"a torch module is wanted, not a {type(model).__name__}: of a pipeline or trainer its .model"
        )
    rows, first = [], {}
    for name, kind, tensor in _walk("", model, set()):
        try:
            address = tensor.data_ptr()
        except (RuntimeError, ValueError):  # a tensor without memory of its own
            address = 0
        owner = first.setdefault((tensor.device, address) if address else id(tensor), name)
        note = ["stays behind"] if kind == "plain attribute" else []
        note += [f"shares memory with {owner}"] * (owner != name) + ["no data"] * tensor.is_meta
        note += ["not initialised"] * is_lazy(tensor)
        shape = () if is_lazy(tensor) or tensor.is_nested else tuple(tensor.shape)
        dtype = str(tensor.dtype).removeprefix("torch.")
        size = _bytes(tensor) if owner == name else 0
        rows.append((name, kind, str(tensor.device), dtype, shape, size, ", ".join(note)))
    return pd.DataFrame(rows, columns=["name", "kind", "device", "dtype", "shape", "bytes", "note"])


def left_behind(model: nn.Module, device: Any) -> list[str]:
    """Names of all tensors of `model`, plain attributes included, that are not on `device`."""
    table = audit(model)
    return table["name"][table["device"] != str(resolve_device(device))].tolist()


def device_of(model: nn.Module) -> torch.device:
    """The one device that all parameters and buffers of `model` are on.

    RuntimeError if there are several or none.
    """
    table = audit(model)[lambda rows: rows["kind"] != "plain attribute"].groupby("device")["name"]
    if len(table) == 1:
        return torch.device(next(iter(table.groups)))
    first = [f"{name!r} is on {at}" for at, name in table.first().items()]
    way = (
        "; ".join([*first, "move() brings them together"])
        if first
        else "it computes wherever its inputs are"
    )
    counts = table.size().to_dict() or "none"
    raise RuntimeError(
        f"a model's tensors should be on one device; of this one there are {counts}: {way}"
    )


def move(obj: Any, device: Any) -> Any:
    """`obj` with every tensor in it on `device`.

    Use what is returned, `model = move(model, device)`.

    Modules move in place, as in PyTorch; tensors, containers (dict, list, tuple, namedtuple, set,
    dataclass, BatchEncoding, ModelOutput, nested at will) and objects that hold tensors come back
    as new ones and the old stay as they were; anything else is returned as it is. What was shared
    stays shared. Warns about plain tensor attributes that a module leaves behind. Raises
    RuntimeError, before anything moved, for tensors without data, and TypeError for an optimizer,
    which has to be built after the move, and for a generator, which can be read only once.
    """
    target = resolve_device(device)
    if target.type != "meta" and (
        empty := [n or "this tensor" for n, _, t in _walk("", obj, set()) if t.is_meta]
    ):
        raise RuntimeError(
            f"without data, being on the meta device: {', '.join(empty[:8])}{', ...' * (len(empty) > 8)}. Load these "
            "or compute them again (a buffer outside the state dict is never loaded), then move. to_empty() is no way "
            "out: it gives them memory, not values."
        )
    return _moved(obj, target, {})


def _moved(obj: Any, target: torch.device, done: dict[int, Any]) -> Any:
    """`done` has what was met before, by id, as it is after the move.

    Sharing is kept, and cycles end.
    """
    if id(obj) in done:
        return done[id(obj)]
    if isinstance(obj, torch.optim.Optimizer):
        raise TypeError(
            "an optimizer cannot be moved: move the model, then build the optimizer, then load its state"
        )
    if isinstance(obj, Iterator):
        raise TypeError(
            f"a {type(obj).__name__} can be read only once: move(list(...), device) moves what it gives"
        )
    new = obj
    if isinstance(obj, nn.Module):
        obj.to(target)
        if behind := left_behind(obj, target):
            text = f"stayed behind, being neither parameter nor buffer: {', '.join(behind)}; use register_buffer()"
            warnings.warn(text, stacklevel=3)
    elif isinstance(obj, torch.Tensor | PackedSequence):
        new = obj.to(target)
    elif isinstance(obj, tuple | frozenset):
        parts = [_moved(part, target, done) for part in obj]
        new = obj._make(parts) if hasattr(obj, "_make") else type(obj)(parts)
    elif isinstance(obj, list | set | deque | UserList):
        done[id(obj)] = new = copy.copy(obj)
        new.clear()
        for part in obj:
            (new.add if isinstance(obj, set) else new.append)(_moved(part, target, done))
    elif isinstance(obj, dict | UserDict):  # a ModelOutput, too, whose attributes follow its items
        done[id(obj)] = new = copy.copy(obj)
        for key, part in obj.items():
            new[key] = _moved(part, target, done)
    elif next(
        _walk("", obj, set()), None
    ):  # dataclasses, caches and other objects that hold tensors
        done[id(obj)] = new = copy.copy(obj)
        for key, part in _attributes(obj).items():
            object.__setattr__(new, key, _moved(part, target, done))
    done[id(obj)] = new
    return new


def check_call(model: nn.Module, inputs: Any) -> torch.device:
    """The device of `model`, the one about to be called.

    RuntimeError if `inputs` are not on it, too.

    `inputs` is a tensor, or a dict, BatchEncoding, list ... of them. The error names the inputs and
    the parameter that disagree and says which side did not move.
    """
    device = device_of(model)
    places = [(name or "inputs", tensor.device) for name, _, tensor in _walk("", inputs, set())]
    if wrong := [place for place in places if place[1] != device]:
        strays = ", ".join(f"input {name!r} is on {at}" for name, at in wrong)
        name, _ = next(itertools.chain(model.named_parameters(), model.named_buffers()))
        side = _stayed("input", str(wrong[0][1]), str(device))
        side = (
            side
            if len(wrong) == len(places)
            else f"The other inputs are there: inputs = move(inputs, '{device}')."
        )
        raise RuntimeError(f"{strays}; the model's {name!r} is on {device}. {side}")
    return device


def call(model: nn.Module, inputs: Any) -> Any:
    """`model(**inputs)`, `model(*inputs)` for a list or tuple, else `model(inputs)`, moved to this very model's device.

    The first call of each model prints the device that computes, and a better one that stands idle.
    """
    device, best = device_of(model), resolve_device()
    if model not in _announced:
        _announced.add(model)
        idle = f", while {best} stands idle: model.to('{best}') would use it"
        print(
            f"{type(model).__name__} computes on {device}{idle if device.type == 'cpu' != best.type else ''}"
        )
    inputs = move(inputs, device)
    if isinstance(inputs, dict | UserDict):
        return model(**inputs)
    return model(*inputs) if type(inputs) in (list, tuple) else model(inputs)


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
        for (
            key,
            value,
        ) in state.items():  # Adam's step counter has no dimension and may stay on the CPU
            if isinstance(value, torch.Tensor) and value.dim() and value.device != parameter.device:
                raise RuntimeError(
                    f"{key!r} of {names.get(id(parameter), 'a parameter')} is on {value.device}, the parameter on "
                    f"{parameter.device}: build the optimizer after the move, then load_state_dict() moves its state"
                )
