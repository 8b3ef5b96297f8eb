"""What a notebook keeps alive, and how to let go of it."""

import contextlib
import ctypes
import gc
import sys
import traceback
from dataclasses import dataclass

from helpers.core.processes import process_memory
from helpers.lessons.fake_gpu import format_bytes
from helpers.lessons.memory import _bytes, _tensors

import torch
from torch.nn import Module
from torch.optim.optimizer import Optimizer


def _what(thing) -> str:
    kinds = {
        BaseException: "an exception, with the variables of every function it went through",
        Optimizer: "an optimizer: its state and the parameters it trains",
        Module: "a model: its weights and gradients",
    }
    for kind, text in kinds.items():
        if isinstance(thing, kind):
            return text
    graph = any(t.grad_fn is not None for t in _tensors(thing))
    return (
        "an output with its graph, which keeps the activations of that pass as well"
        if graph
        else "tensors"
    )


@dataclass(frozen=True)
class Freed:
    """What `free_memory` gave back, in bytes, and who holds the rest.

    Rows of (name, bytes, what it is).
    """

    freed: int
    holders: list[tuple[str, int, str]]

    def __str__(self) -> str:
        rows = [f"  {name}: {format_bytes(size)}, {what}" for name, size, what in self.holders]
        return "\n".join(
            [
                f"Freed {format_bytes(self.freed)}.",
                "Still held by:" if rows else "No name holds a tensor.",
                *rows,
            ]
        )


def free_memory(namespace: dict | None = None) -> Freed:
    """Give back what a notebook keeps alive by itself, and name what the reader's own variables still hold.

    Forgets the last exception (with the variables of the functions it went through) and, in
    IPython, `Out`, `_` and their like; then collects garbage; then empties the caches of the C
    library (on Linux), CUDA and MPS. Nothing that has a name of its own is touched. namespace:
    where to look for holders, by default the notebook's (or the main script's) variables. `freed`
    counts CUDA's allocated bytes when CUDA is in use, else the memory of this process.
    """
    if not isinstance(namespace, dict | None):
        raise TypeError(
            f"free_memory deletes no {type(namespace).__name__}: use `del` for its name, then free_memory()"
        )
    in_use = torch.cuda.memory_allocated if torch.cuda.is_initialized() else process_memory
    before = in_use()
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    errors = [getattr(sys, name, None) for name in ("last_exc", "last_value")] + [sys.exc_info()[1]]
    if shell is not None:
        errors += [
            getattr(shell.last_execution_result, "error_in_exec", None),
            getattr(shell.InteractiveTB, "evalue", None),
        ]
        shell.last_execution_result = shell.InteractiveTB.tb = shell.InteractiveTB.evalue = None
        if shell.displayhook.do_full_cache:
            shell.displayhook.flush()
        for names in (shell.user_ns, shell.user_ns_hidden):  # of these, flush forgets some
            names.update({"_": "", "__": "", "___": ""})
    known = {id(None)}  # `raise error from error` makes a ring
    while errors:
        error = errors.pop()
        if id(error) not in known:
            known.add(id(error))
            traceback.clear_frames(error.__traceback__)
            errors += [error.__cause__, error.__context__]
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        vars(sys).pop(name, None)
    gc.collect()
    with contextlib.suppress(TypeError, OSError, AttributeError):  # Windows, macOS
        ctypes.CDLL(None).malloc_trim(0)
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()
    if namespace is None:
        namespace = shell.user_ns if shell is not None else vars(sys.modules["__main__"])
    own = (
        shell.user_ns_hidden if shell is not None else {}
    )  # names that IPython made: Out, exit, get_ipython
    rows = []
    for name, thing in namespace.items():
        with contextlib.suppress(
            Exception
        ):  # the reader's own classes may raise when they are looked into
            if not name.startswith("_") and name not in own and (size := _bytes(_tensors(thing))):
                rows.append((name, size, _what(thing)))
    return Freed(max(before - in_use(), 0), sorted(rows, key=lambda row: -row[1]))
