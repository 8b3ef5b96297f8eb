"""Checks for the exercises of notebook 08 (put it together)."""

import math
import numbers
from collections.abc import Callable, Mapping, Sequence

from helpers.exercises import exercise


@exercise
def check_08_1(answer: Callable[[float, float], float]) -> str | None:
    """A function (share, factor).

    How many times as fast the whole gets if a share of its time gets factor times so.
    """
    for share, factor in ((0.5, 2), (0.8, 10), (0.25, 1000), (0.0, 5), (1.0, 5)):
        right, found = 1 / (1 - share + share / factor), answer(share, factor)
        if isinstance(found, bool) or not isinstance(found, numbers.Real):
            return f"it should return a number, not {type(found).__name__}"
        if math.isclose(found, right, rel_tol=1e-3):
            continue
        where = f"if {share:.0%} of the time gets {factor} times as fast"
        if math.isclose(found, 1 / right, rel_tol=1e-3):
            return f"{where}, the whole takes {found:.3f} of its time: the question is how many times as fast that is"
        if math.isclose(found, 1 - share + share * factor, rel_tol=1e-3):
            return f"{where}, it gives {found:g}: a mean of speeds. Add up times, not speeds"
        return f"{where}, it gives {found:g} and the whole gets {right:.3g} times as fast"
    return None


@exercise
def check_08_2(answer: Callable[[Sequence[Mapping]], list[str]]) -> str | None:
    """A function (rows).

    The names of the pipelines that no other one beats; a row is {name, ms, accuracy}.
    """
    rows = [
        {"name": "large", "ms": 40.0, "accuracy": 0.90},
        {"name": "slow", "ms": 50.0, "accuracy": 0.89},
        {"name": "small", "ms": 2.0, "accuracy": 0.85},
        {"name": "twin", "ms": 2.0, "accuracy": 0.84},
        {"name": "tiny", "ms": 1.0, "accuracy": 0.80},
        {"name": "late", "ms": 3.0, "accuracy": 0.85},
    ]
    found = answer([dict(row) for row in rows])
    found = found if found is None or isinstance(found, str) else list(found)
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        return "it should return a list of names"
    found, right = set(found), {"large", "small", "tiny"}
    for name, words in (
        ("slow", "is slower than large, and less accurate"),
        ("late", "is no more accurate than small, and slower"),
        ("twin", "takes as long as small, and is less accurate"),
    ):
        if name in found:
            return f"{name} {words}: nobody would choose it"
    for name in sorted(right - found):
        return f"{name} is missing: nothing else is both as fast and as accurate"
    if found != right:
        return f"there is no pipeline called {min(found - right)}"
    same = [{"name": name, "ms": 1.0, "accuracy": 0.8} for name in ("one", "other")]
    if set(answer(same)) != {"one", "other"}:
        return "two pipelines with the same time and accuracy do not beat each other: both stay"
    return None


@exercise
def check_08_3(answer: Callable[[float, float, float], float]) -> str | None:
    """A function (texts, per_second, price).

    What it costs to classify texts on a machine of this price an hour.
    """
    for texts, per_second, price in ((1e6, 100.0, 0.36), (2e5, 2500.0, 0.09), (3600.0, 1.0, 5.0)):
        right, found = texts / per_second / 3600 * price, answer(texts, per_second, price)
        if isinstance(found, bool) or not isinstance(found, numbers.Real):
            return f"it should return a number, not {type(found).__name__}"
        if math.isclose(found, right, rel_tol=1e-3):
            continue
        where = f"{texts:g} texts at {per_second:g} a second and {price:g} an hour"
        if math.isclose(found, 3600 * right, rel_tol=1e-3):
            return f"{where} cost {right:g}, not {found:g}: the price is for an hour, the speed for a second"
        return f"{where} cost {right:g}, not {found:g}"
    return None
