"""What a notebook keeps alive, and how to let go of it (notebook 02)."""

import contextlib
import ctypes
import gc
import sys
import traceback
from collections import UserDict
from dataclasses import dataclass

from helpers.core.processes import process_memory
from helpers.core.tensors import format_bytes
from helpers.lessons.memory import alive, storage_bytes

import torch
from torch.nn import Module
from torch.optim.optimizer import Optimizer

# Other objects, such as widgets, lead to half of the program.
HOLDERS = (torch.Tensor, Module, Optimizer, dict, UserDict, list, tuple, set)


@dataclass(frozen=True)
class Freed:
    """What `free_memory` gave back, and who holds the rest."""

    freed: int  # bytes
    holders: list[tuple[str, int, str]]  # name, bytes, what it is

    def __str__(self) -> str:
        lines = [f"Freed {format_bytes(self.freed)}."]
        lines.append("Still held by:" if self.holders else "No name holds a tensor.")
        lines += [f"  {name}: {format_bytes(size)}, {what}" for name, size, what in self.holders]
        return "\n".join(lines)


def _what(thing) -> str:
    if isinstance(thing, Optimizer):
        return "an optimizer: its state and the parameters it trains"
    if isinstance(thing, Module):
        return "a model: its weights and gradients"
    if any(tensor.grad_fn is not None for tensor in alive(thing)):
        return "an output with its graph, which keeps the activations of that pass as well"
    return "tensors"


def _forget_errors(shell) -> None:
    """Clear the frames of the last exceptions, which hold the variables of their functions."""
    errors = [getattr(sys, name, None) for name in ("last_exc", "last_value")] + [sys.exc_info()[1]]
    if shell is not None:
        errors.append(getattr(shell.last_execution_result, "error_in_exec", None))
        errors.append(getattr(shell.InteractiveTB, "evalue", None))
        shell.last_execution_result = shell.InteractiveTB.tb = shell.InteractiveTB.evalue = None
    known = {id(None)}  # `raise error from error` makes a ring
    while errors:
        error = errors.pop()
        if id(error) not in known:
            known.add(id(error))
            traceback.clear_frames(error.__traceback__)
            errors += [error.__cause__, error.__context__]
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        vars(sys).pop(name, None)


def _forget_outputs(shell) -> None:
    """Clear `Out`, `_` and their like."""
    if shell.displayhook.do_full_cache:
        shell.displayhook.flush()
    for names in (shell.user_ns, shell.user_ns_hidden):  # of these, flush forgets some
        names.update({"_": "", "__": "", "___": ""})


def _empty_caches() -> None:
    gc.collect()
    with contextlib.suppress(TypeError, OSError, AttributeError):  # Windows, macOS
        ctypes.CDLL(None).malloc_trim(0)
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()


def free_memory(namespace: dict | None = None) -> Freed:
    """Give back what a notebook keeps alive by itself, and name what the reader's names hold.

    Forgets the last exception and, in IPython, `Out`, `_` and their like; collects garbage; empties
    the caches of the C library, CUDA and MPS. Nothing that has a name is touched.

    Args:
        namespace: Where to look for holders; by default the notebook's variables.

    Returns:
        What it freed: of CUDA's allocated bytes if CUDA is in use, else of the process.
    """
    in_use = torch.cuda.memory_allocated if torch.cuda.is_initialized() else process_memory
    before = in_use()
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    _forget_errors(shell)
    names, own = vars(sys.modules["__main__"]), {}
    if shell is not None:
        _forget_outputs(shell)
        names, own = shell.user_ns, shell.user_ns_hidden  # what IPython made is its own
    _empty_caches()
    if namespace is not None:
        names = namespace
    holders = []
    for name, thing in names.items():
        if name.startswith("_") or name in own or not isinstance(thing, HOLDERS):
            continue
        with contextlib.suppress(Exception):  # the reader's classes may raise when looked into
            if size := storage_bytes(alive(thing)):
                holders.append((name, size, _what(thing)))
    return Freed(max(before - in_use(), 0), sorted(holders, key=lambda row: -row[1]))
