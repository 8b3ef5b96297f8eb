"""Checks for the exercises of notebook 05 (quantization)."""

from collections.abc import Callable

from helpers.exercises import exercise

import numpy

EVEN = numpy.linspace(-0.74, 1.86, 401)
ARRAYS = {"values of both signs": EVEN, "only positive values": EVEN + 3}
ARRAYS |= {"only negative values": EVEN - 3}
ARRAYS |= {"equal values": numpy.full(9, 2.5), "zeros": numpy.zeros(9)}
INT16 = (-32768, 32767)


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


def _dot_products() -> list[tuple[numpy.ndarray, numpy.ndarray]]:
    random = numpy.random.default_rng(0)
    large = random.integers(200, 256, 64)
    cases = [(large, numpy.where(random.random(64) < ones, 127, -128)) for ones in (0.8, 0.2)]
    cases.append((random.integers(0, 256, 64), random.integers(-128, 128, 64)))
    return [(a.astype(numpy.uint8), w.astype(numpy.int8)) for a, w in cases]


@exercise
def check_05_2(answer: Callable[[numpy.ndarray, numpy.ndarray], int]) -> str | None:
    """Check a function of activations (uint8) and weights (int8): their product without VNNI."""
    for activations, weights in _dot_products():
        products = activations.astype(int) * weights
        pairs = products.reshape(-1, 2).sum(axis=1)
        halves = products.reshape(2, -1).sum(axis=0)
        result = answer(activations.copy(), weights.copy())
        right = numpy.clip(pairs, *INT16).sum()
        if numpy.ndim(result) != 0:
            return f"it should return one number, not an array of shape {numpy.shape(result)}"
        if result == right:
            continue
        running = 0
        for pair in pairs:
            running = int(numpy.clip(running + pair, *INT16))
        faults = {
            int(pairs.sum()): "that is the exact sum: cut off the sums of two products",
            int(numpy.clip(pairs.sum(), *INT16)): "the total is cut off, and the total has 32 bits",
            running: "the total is cut off, again and again, and the total has 32 bits",
            int(
                numpy.clip(halves, *INT16).sum()
            ): "the pairs are neighbours: first and second, ...",
            int(pairs.astype(numpy.int16).sum()): "the sums wrap around: compute in int32 first",
        }
        words = faults.get(int(result), "that is no mistake that is known here")
        return f"for {len(weights)} products it gives {result}, and such a CPU {right}: {words}"
    return None


FORMATS = {  # megabytes, and the interval of the change in points
    "float32": (91.2, 0.0, 0.0),
    "static": (22.0, -2.9, -0.9),
    "better": (31.0, 0.1, 0.9),
    "narrow": (23.0, -0.5, 0.1),
    "tiny": (11.0, -6.0, -3.2),
}
SMALLEST = {1.0: "narrow", 0.5: "narrow", 0.4: "better", 3.0: "static", 9.0: "tiny"}


@exercise
def check_05_3(answer: Callable[[list[dict], float], str]) -> str | None:
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
