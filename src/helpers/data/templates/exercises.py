"""Checks for the exercises of notebook NN."""

from collections.abc import Callable

from helpers.exercises import exercise


@exercise
def check_NN_1(answer: int) -> str | None:
    """Check the number of words of the longer text."""
    if answer == 2:
        return "that is the shorter text"
    return None if answer == 5 else f"it does not have {answer} words"


@exercise
def check_NN_2(answer: Callable) -> str | None:
    """Check a function from a text to its number of words."""
    found = answer("one two  three")
    return None if found == 3 else f"it gives {found} for 'one two  three'"
