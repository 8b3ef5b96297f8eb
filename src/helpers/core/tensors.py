"""Tensors in any container: find them, count their bytes, compare them, and write sizes as text."""

import hashlib
import math
from collections import UserDict, deque
from collections.abc import Iterable, Iterator
from numbers import Real
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

MIB, GIB = 2**20, 2**30
DEEPEST = 20  # a walk goes no deeper: some objects hold half of the program


def format_bytes(n: float) -> str:
    """Return a number of bytes as text."""
    return f"{n / GIB:.2f} GiB" if n >= GIB else f"{n / MIB:.2f} MiB"


def gib_to_bytes(value: float) -> float:
    """Return the bytes of so many GiB.

    Raises:
        ValueError: If no memory can have that size.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < math.inf:
        raise ValueError(f"a memory size is a number of GiB above 0, such as 8, not {value!r}")
    return float(value) * GIB


def plain(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors that a wrapper (int8, nested) is made of; a plain one yields itself."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from plain(getattr(tensor, name))
    elif tensor.is_sparse:
        yield from (tensor._indices(), tensor._values())
    elif not is_lazy(tensor):
        yield tensor


def nbytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's data: those of its parts for a quantized or sparse one."""
    return sum(part.numel() * part.element_size() for part in plain(tensor))


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """Return one SHA-256, in hexadecimal, over the data of tensors in their order."""
    total = hashlib.sha256()
    for tensor in tensors:
        for part in plain(tensor.detach()):
            total.update(part.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()


def walk(value: Any, name: str = "") -> Iterator[tuple[str, str, torch.Tensor]]:
    """Yield every tensor that Python can reach from a value, registered ones first, each once.

    Looks into modules, containers and objects' attributes. What closures and C++ objects hide
    cannot be seen.

    Yields:
        Its name; "parameter", "buffer", "non-persistent buffer" (not in the state dict) or
        "plain attribute" (what `.to()` leaves behind); and the tensor.
    """
    yield from _walk(name, value, set(), 0)


def _walk(name: str, value: Any, seen: set[int], depth: int):
    if id(value) in seen or depth > DEEPEST:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield name, "plain attribute", value
    elif isinstance(value, nn.Module):
        yield from _walk_module(name, value, seen, depth)
    else:
        for place, held in _parts(value):
            if not name:
                place = place.removeprefix(".").removeprefix("['").removesuffix("']")
            yield from _walk(name + place, held, seen, depth + 1)


def _walk_module(name: str, root: nn.Module, seen: set[int], depth: int):
    modules = list(root.named_modules(prefix=name))
    seen |= {id(module) for _, module in modules}
    for prefix, module in modules:
        for key, tensor in {**module._parameters, **module._buffers}.items():
            # A module within a plain container is not registered, and neither are its tensors.
            # Tied parameters of the outermost module are listed under each of their names.
            if tensor is not None and (depth == 0 or id(tensor) not in seen):
                seen.add(id(tensor))
                kind = _kind(module, key) if depth == 0 else "plain attribute"
                yield f"{prefix}.{key}".lstrip("."), kind, tensor
    for prefix, module in modules:
        for key, held in {**_class_values(module), **vars(module)}.items():
            if key not in ("_parameters", "_buffers", "_modules"):
                yield from _walk(f"{prefix}.{key}".lstrip("."), held, seen, depth + 1)


def _kind(module: nn.Module, key: str) -> str:
    if key in module._parameters:
        return "parameter"
    return "non-persistent buffer" if key in module._non_persistent_buffers_set else "buffer"


def _class_values(module: nn.Module) -> dict[str, Any]:
    """Return the tensors and containers that a module's class keeps for all of its modules."""
    own = [c for c in type(module).__mro__ if issubclass(c, nn.Module) and c is not nn.Module]
    values = {key: held for cls in reversed(own) for key, held in vars(cls).items()}
    wanted = torch.Tensor | list | tuple | dict
    return {key: held for key, held in values.items() if isinstance(held, wanted)}


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a container or object holds, with its place: "[0]", "['key']", ".attribute"."""
    if isinstance(value, dict | UserDict):  # other mappings may be lazy: a disk's
        yield from ((f"[{key!r}]", held) for key, held in value.items())
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from ((f"[{index}]", held) for index, held in enumerate(value))
    elif not isinstance(value, type | ModuleType | FunctionType):
        held = getattr(value, "__dict__", {})
        yield from ((f".{key}", item) for key, item in held.items())
