"""Checks for the exercises of notebook 08 (put it together)."""

import math
import numbers
from collections.abc import Callable, Mapping, Sequence

from helpers.exercises import exercise

ROWS = [("large", 40.0, 0.90), ("slow", 50.0, 0.89), ("small", 2.0, 0.85)]
ROWS += [("twin", 2.0, 0.84), ("tiny", 1.0, 0.80), ("late", 3.0, 0.85)]
BEATEN = {
    "slow": "is slower than large, and less accurate",
    "late": "is no more accurate than small, and slower",
    "twin": "takes as long as small, and is less accurate",
}


@exercise
def check_08_1(answer: Callable[[float, float], float]) -> str | None:
    """A function (share, factor): how many times as fast the whole gets."""
    for share, factor in ((0.5, 2), (0.8, 10), (0.25, 1000), (0.0, 5), (1.0, 5)):
        found, right = answer(share, factor), 1 / (1 - share + share / factor)
        if isinstance(found, bool) or not isinstance(found, numbers.Real):
            return f"it should return a number, not {type(found).__name__}"
        if math.isclose(found, right, rel_tol=1e-3):
            continue
        case = f"if {share:.0%} of the time gets {factor} times as fast"
        case = f"{case} it should give {right:.3g}, not {found:.3g}"
        if math.isclose(found, 1 / right, rel_tol=1e-3):
            return f"{case}: that is its time, and the question is how many times as fast"
        if math.isclose(found, 1 - share + share * factor, rel_tol=1e-3):
            return f"{case}: that is a mean of speeds. Add up times, not speeds"
        return case
    return None


@exercise
def check_08_2(answer: Callable[[Sequence[Mapping]], list[str]]) -> str | None:
    """A function (rows of name, ms, accuracy): the names of those that no other one beats."""
    names = answer([dict(zip(("name", "ms", "accuracy"), row, strict=True)) for row in ROWS])
    if names is None or isinstance(names, str):
        return "it should return a list of names"
    found, right = set(names), {"large", "small", "tiny"}
    for name in sorted(found - right):
        return f"{name} {BEATEN.get(name, 'is not among the rows')}: nobody would choose it"
    for name in sorted(right - found):
        return f"{name} is missing: nothing else is both as fast and as accurate"
    same = [{"name": name, "ms": 1.0, "accuracy": 0.8} for name in ("one", "other")]
    if set(answer(same)) != {"one", "other"}:
        return "two pipelines with the same time and accuracy do not beat each other: both stay"
    return None
