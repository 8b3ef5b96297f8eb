"""Checks for the notebooks' exercises, named `check_<notebook>_<exercise>`.

Each stands in the module of its notebook (`lesson_02`), which is imported when it is asked for. It
prints "not answered yet" while the answer is None or ..., then "not quite, because ..." with a
hint, then "correct". An answer that raises is a wrong answer, not a broken notebook.
"""

import functools
import importlib
import re
from collections.abc import Callable
from typing import Any

from helpers.exercises import record
from helpers.exercises.record import progress as progress  # for readers


def exercise(find_fault: Callable[..., str | None]) -> Callable[..., None]:
    """Make a check of a function that returns what is wrong with an answer, or None."""

    @functools.wraps(find_fault)
    def check(answer: Any, *context: Any) -> None:
        if answer is None or answer is ...:
            print("not answered yet")
            return
        try:
            fault = find_fault(answer, *context)
        except Exception as error:  # whatever a learner's code may raise
            fault = f"it raised {type(error).__name__}: {str(error).strip() or 'no message'}"
        print("correct" if fault is None else f"not quite, because {fault}")
        if fault is None:
            record.add(find_fault.__name__)

    return check


def __getattr__(name: str) -> Callable[..., None]:
    if found := re.fullmatch(r"check_(\d\d)_\d", name):
        return getattr(importlib.import_module(f"{__name__}.lesson_{found[1]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
