"""What a notebook keeps alive, and how to let go of it (notebook 02)."""

import contextlib
import ctypes
import gc
import sys
import traceback
from collections import UserDict

from helpers.core.tensors import alive, storage_bytes

import torch
from torch.nn import Module
from torch.optim.optimizer import Optimizer

# Other objects, such as widgets, lead to half of the program.
HOLDERS = (torch.Tensor, Module, Optimizer, dict, UserDict, list, tuple, set)


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


def free_memory() -> dict[str, int]:
    """Give back what a notebook keeps alive by itself, and name what the reader's variables hold.

    Forgets the last exception and, in IPython, `Out`, `_` and their like; collects garbage; empties
    the caches of the C library, CUDA and MPS. Nothing that has a name is touched.

    Returns:
        The bytes of the tensors that each variable holds, the largest first.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    _forget_errors(shell)
    names, own = vars(sys.modules["__main__"]), {}
    if shell is not None:
        _forget_outputs(shell)
        names, own = shell.user_ns, shell.user_ns_hidden  # what IPython made is its own
    _empty_caches()
    held = {}
    for name, thing in names.items():
        if name.startswith("_") or name in own or not isinstance(thing, HOLDERS):
            continue
        with contextlib.suppress(Exception):  # the reader's classes may raise when looked into
            if size := storage_bytes(alive(thing)):
                held[name] = size
    return dict(sorted(held.items(), key=lambda item: -item[1]))
