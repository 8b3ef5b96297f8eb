"""Checks for the exercises of notebook 05 (quantization)."""

from collections.abc import Callable
from math import isfinite

from helpers.exercises import exercise

import numpy


@exercise
def check_05_1(answer: Callable[[numpy.ndarray, int], tuple[float, int]]) -> str | None:
    """A function (x, bits): scale and zero point of the levels 0 to 2**bits - 1, of which one is exactly zero."""
    even = numpy.linspace(-0.74, 1.86, 401)
    arrays = {
        "values of both signs": even,
        "only positive values": even + 3,
        "only negative values": even - 3,
    }
    arrays |= {"equal values": numpy.full(9, 2.5), "zeros": numpy.zeros(9)}
    for name, x in arrays.items():
        for bits in (8, 4, 2):
            case, top = f"for {name} and {bits} bits", 2**bits - 1
            try:
                with numpy.errstate(all="ignore"):
                    result = answer(x.copy(), bits)
            except (ArithmeticError, ValueError) as error:  # of a range that is empty
                return f"{case} it raised {type(error).__name__}: {error}"
            if not isinstance(result, tuple | list) or len(result) != 2:
                return f"it should return two things, scale and zero point, not {result!r:.60}"
            scale, zero = map(float, result)
            if not isfinite(scale) or scale <= 0:
                return f"{case} the scale is {scale:.4g}, and nothing can be divided by that"
            if not zero.is_integer():
                return f"{case} the zero point is {zero:.4g}: between two levels, so zero is not represented exactly"
            low, high = min(x.min(), 0), max(x.max(), 0)
            if not 0 <= zero <= top:
                words = (
                    "widen the range until it holds zero"
                    if x.min() * x.max() > 0
                    else "the lowest value is level 0"
                )
                return f"{case} the zero point is {zero:.0f}, which is not one of the levels 0 to {top}: {words}"
            restored = (numpy.clip(numpy.round(x / scale) + zero, 0, top) - zero) * scale
            worst, half = numpy.abs(restored - x).max(), (high - low) / top / 2
            if worst <= half * 1.0001:
                continue
            if abs(scale * 2**bits - (high - low)) < 1e-6:
                return f"{case} the ends are cut off: {2**bits} levels have only {top} steps between them"
            if abs(scale - 2 * half) < 1e-6 and zero != round(-low / scale):
                return f"{case} the zero point is {zero:.0f}, and not {-low / scale:.2f} rounded to the nearest level"
            return f"{case} a value comes back wrong by {worst:.3f}, and half a step need not be more than {half:.3f}"
    return None


def _pairs(activations: numpy.ndarray, weights: numpy.ndarray) -> numpy.ndarray:
    """The exact sums of neighbouring products."""
    return (activations.astype(int) * weights.astype(int)).reshape(-1, 2).sum(axis=1)


def _cut(sums):
    return numpy.clip(sums, -32768, 32767)


@exercise
def check_05_2(answer: Callable[[numpy.ndarray, numpy.ndarray], int]) -> str | None:
    """A function (activations uint8, weights int8): the sum of products as vpmaddubsw and 32-bit additions give it."""
    random = numpy.random.default_rng(0)
    cases = [
        (random.integers(200, 256, 64), numpy.where(random.random(64) < ones, 127, -128))
        for ones in (0.8, 0.2)
    ]
    cases += [(random.integers(0, 256, 64), random.integers(-128, 128, 64))]
    cases += [
        (numpy.array([255, 255, 1, 3]), numpy.array(weights))
        for weights in ([127, 127, 2, 4], [-128, -128, 0, 5])
    ]
    cases += [(numpy.array([10, 200]), numpy.array([-3, 7]))]
    for activations, weights in ((a.astype(numpy.uint8), w.astype(numpy.int8)) for a, w in cases):
        pairs = _pairs(activations, weights)
        right, result = int(_cut(pairs).sum()), answer(activations.copy(), weights.copy())
        if numpy.ndim(result) != 0:
            return f"it should return one number, not an array of shape {numpy.shape(result)}"
        if result == right:
            continue
        halves = (activations.astype(int) * weights).reshape(2, -1).sum(axis=0)
        running = 0
        for pair in pairs:
            running = int(_cut(running + pair))
        faults = {
            int(
                pairs.sum()
            ): "that is the exact sum. Every single product fits into 16 bits: cut off the sums of two",
            int(_cut(pairs.sum())): "the total is cut off, and the total has 32 bits",
            running: "the total is cut off, again and again, and the total has 32 bits",
            int(
                _cut(halves).sum()
            ): "the pairs are neighbours: first and second, third and fourth, ...",
            int(
                pairs.astype(numpy.int16).sum()
            ): "the sums wrap around (uint8 times int8 is int16 in NumPy), and the "
            "CPU cuts off: compute in int32 first",
        }
        words = faults.get(int(result), "that is no mistake that is known here")
        return (
            f"for {len(weights)} products it gives {int(result)}, and such a CPU {right}: {words}"
        )
    return None


@exercise
def check_05_3(answer: Callable[[list[dict], float], str]) -> str | None:
    """A function (table, max_points): the smallest file that, at the bad end of its interval, loses at most that."""
    rows = [
        ("float32", 91.2, 0.0, 0.0),
        ("wide", 24.5, -1.5, 1.1),
        ("static", 22.0, -2.9, -0.9),
        ("better", 31.0, 0.1, 0.9),
        ("narrow", 23.0, -0.5, 0.1),
        ("tiny", 11.0, -6.0, -3.2),
    ]
    table = [dict(zip(("name", "megabytes", "low", "high"), row, strict=True)) for row in rows]
    size = {row["name"]: row["megabytes"] for row in table}
    for points, right in (
        (1.0, "narrow"),
        (0.5, "narrow"),
        (2.0, "narrow"),
        (0.4, "better"),
        (3.0, "static"),
        (9.0, "tiny"),
    ):
        name, case = (
            answer([dict(row) for row in table], points),
            f"with {points:.1f} points to lose",
        )
        if not isinstance(name, str) or name not in size:
            return f"it should return a name of the table, not {name!r:.60}"
        if name == right:
            continue
        low, high = next((row["low"], row["high"]) for row in table if row["name"] == name)
        if -low <= points:
            return f"{case}, {name} ({size[name]} MB) is safe, but {right} is safe and has {size[right]} MB"
        if -(low + high) / 2 <= points:
            return f"{case}, {name} keeps to it in the middle of its interval only: it may lose {-low:.1f} points"
        return f"{case}, {name} is not safe: it may lose {-low:.1f} points (low is the bad end, negative is worse)"
    return None
