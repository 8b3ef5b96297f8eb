"""Checks for the exercises of notebook 05 (quantization)."""

from collections.abc import Callable

from helpers.exercises import exercise

import numpy

EVEN = numpy.linspace(-0.74, 1.86, 401)
ARRAYS = {"values of both signs": EVEN, "only positive values": EVEN + 3}
ARRAYS |= {"only negative values": EVEN - 3}
ARRAYS |= {"equal values": numpy.full(9, 2.5), "zeros": numpy.zeros(9)}


@exercise
def check_05_1(answer: Callable[[numpy.ndarray, int], tuple[float, int]]) -> str | None:
    """Check a function of x and bits: scale and zero point of the levels 0 to 2**bits - 1."""
    for name, x in ARRAYS.items():
        for bits in (8, 4, 2):
            case = f"for {name} and {bits} bits"
            try:
                with numpy.errstate(all="ignore"):
                    result = answer(x.copy(), bits)
            except (ArithmeticError, ValueError) as error:  # of a range that is empty
                return f"{case} it raised {type(error).__name__}: {error}"
            if not isinstance(result, tuple | list) or len(result) != 2:
                return f"it should return two things, scale and zero point, not {result!r:.60}"
            if fault := _scale_fault(x, bits, *map(float, result)):
                return f"{case} {fault}"
    return None


def _scale_fault(x: numpy.ndarray, bits: int, scale: float, zero: float) -> str | None:
    top = 2**bits - 1
    if not numpy.isfinite(scale) or scale <= 0:
        return f"the scale is {scale:.4g}, and nothing can be divided by that"
    if not zero.is_integer():
        return f"the zero point is {zero:.4g}: between two levels, so zero is not exact"
    if not 0 <= zero <= top:
        words = "the lowest value is level 0"
        if x.min() * x.max() > 0:
            words = "widen the range until it holds zero"
        return f"the zero point is {zero:.0f}, which is not one of the levels 0 to {top}: {words}"
    low = min(x.min(), 0)
    step = (max(x.max(), 0) - low) / top
    restored = (numpy.clip(numpy.round(x / scale) + zero, 0, top) - zero) * scale
    worst = numpy.abs(restored - x).max()
    if worst <= step / 2 * 1.0001:
        return None
    if abs(scale * 2**bits - step * top) < 1e-6:
        return f"the ends are cut off: {2**bits} levels have only {top} steps between them"
    if abs(scale - step) < 1e-6 and zero != round(-low / scale):
        return f"the zero point is {zero:.0f}, not {-low / scale:.2f} rounded to the nearest level"
    return f"a value comes back wrong by {worst:.3f}, and half a step is {step / 2:.3f}"


FORMATS = {  # megabytes, and the interval of the change in points
    "float32": (91.2, 0.0, 0.0),
    "static": (22.0, -2.9, -0.9),
    "better": (31.0, 0.1, 0.9),
    "narrow": (23.0, -0.5, 0.1),
    "tiny": (11.0, -6.0, -3.2),
}
SMALLEST = {1.0: "narrow", 0.5: "narrow", 0.4: "better", 3.0: "static", 9.0: "tiny"}


@exercise
def check_05_2(answer: Callable[[list[dict], float], str]) -> str | None:
    """Check a function of a table and points: the smallest file that surely loses no more."""
    keys = ("megabytes", "low", "high")
    for points, right in SMALLEST.items():
        table = [{"name": n, **dict(zip(keys, row, strict=True))} for n, row in FORMATS.items()]
        name = answer(table, points)
        case = f"with {points:.1f} points to lose"
        if not isinstance(name, str) or name not in FORMATS:
            return f"it should return a name of the table, not {name!r:.60}"
        if name == right:
            continue
        size, low, high = FORMATS[name]
        if -low <= points:
            return f"{case}, {name} ({size} MB) is safe, but {right} is safe and has fewer"
        lost = f"it may lose {-low:.1f} points"
        if -(low + high) / 2 <= points:
            return f"{case}, {name} keeps to it in the middle of its interval only: {lost}"
        return f"{case}, {name} is not safe: {lost} (low is the bad end, negative is worse)"
    return None
