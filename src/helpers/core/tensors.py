"""Tensors in any container: find them, count their bytes, and write sizes as text."""

import math
import re
from collections import UserDict, deque
from collections.abc import Iterator
from numbers import Real
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

MIB, GIB = 2**20, 2**30
DEEPEST = 30  # a walk goes no deeper: some objects hold half of the program


def format_bytes(n: float) -> str:
    """Return a number of bytes as text."""
    return f"{n / GIB:.2f} GiB" if n >= GIB else f"{n / MIB:.2f} MiB"


def gib_to_bytes(value: float) -> float:
    """Return the bytes of so many GiB; refuse a size that no memory can have."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < math.inf:
        raise ValueError(f"a memory size is a number of GiB above 0, such as 8, not {value!r}")
    return float(value) * GIB


def plain(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors that a wrapper (int8, nested) is made of; a plain one yields itself."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from plain(getattr(tensor, name))
    else:
        yield tensor


def is_packed(module: nn.Module) -> bool:
    """Whether it is a linear layer of torch.ao, whose int8 weight is a function."""
    ours = re.match(r"torch\.ao\.nn\.(\w+\.)*quantized", type(module).__module__)
    return bool(ours) and callable(getattr(module, "weight", None))


def nbytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's data: those of its parts for a quantized one."""
    return sum(part.numel() * part.element_size() for part in plain(tensor))


def walk(value: Any, name: str = "") -> Iterator[tuple[str, str, torch.Tensor]]:
    """Yield every tensor in modules, containers and objects' attributes, each once.

    Yields:
        Its name; "parameter", "buffer", "non-persistent buffer" (not in the state dict), "packed"
        (int8 of torch.ao) or "plain attribute" (`.to()` leaves these two behind); and the tensor.
        Tied parameters are listed under each of their names.
    """
    seen = set()
    if isinstance(value, nn.Module):
        prefix = f"{name}." if name else ""
        for key, kind, tensor in _registered(value):
            if kind != "packed":  # made for this look: its id will be another's
                seen.add(id(tensor))
            yield prefix + key, kind, tensor
    yield from _walk(name, value, seen, DEEPEST)


def _registered(root: nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    saved = root.state_dict(keep_vars=True).keys()
    own = {"recurse": False, "remove_duplicate": False}
    for prefix, module in root.named_modules(remove_duplicate=False):
        for name, tensor in module.named_parameters(prefix, **own):
            yield name, "parameter", tensor
        for name, tensor in module.named_buffers(prefix, **own):
            yield name, "buffer" if name in saved else "non-persistent buffer", tensor
        if is_packed(module):
            yield f"{prefix}.weight", "packed", module.weight()


def _walk(name: str, value: Any, seen: set[int], left: int):
    if id(value) in seen or left < 0:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield name, "plain attribute", value
        return
    for place, held in _parts(value):
        if not name:
            place = place.removeprefix(".").removeprefix("['").removesuffix("']")
        yield from _walk(name + place, held, seen, left - 1)


def _parts(value: Any) -> list[tuple[str, Any]]:
    """Return what a container or object holds, with its place: "[0]", "['key']", ".attribute"."""
    if isinstance(value, dict | UserDict):  # other mappings may be lazy: a disk's
        return [(f"[{key!r}]", held) for key, held in value.items()]
    if isinstance(value, list | tuple | set | frozenset | deque):
        return [(f"[{index}]", held) for index, held in enumerate(value)]
    if isinstance(value, type | ModuleType):
        return []
    held = getattr(value, "__dict__", {})
    if isinstance(value, nn.Module):
        own = dict(value.named_parameters(recurse=False)) | dict(value.named_buffers(recurse=False))
        held = own | dict(value.named_children()) | held  # these first, by their own names
    return [(f".{key}", part) for key, part in held.items()]


def alive(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that a value keeps alive, with the gradients of the leaves."""
    for _, _, tensor in walk(value):
        yield tensor
        if tensor.is_leaf and tensor.grad is not None:
            yield tensor.grad


def storage_bytes(tensors) -> int:
    """Return the bytes of the storages behind tensors, each once; none for meta and fake ones."""
    storages = {}
    for tensor in tensors:
        for part in plain(tensor):
            storage = part.untyped_storage() if part.layout == torch.strided else None
            if storage is not None and storage.device.type != "meta":
                storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())
