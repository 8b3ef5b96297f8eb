"""Accuracy with its uncertainty: one model's interval, and two models on the same texts in pairs.

Used by notebooks 05 to 08 and the benchmark. Sources: Wilson, JASA 22 (1927) 209-212, for the
interval of a share; McNemar, Psychometrika 12 (1947) 153-157, for the paired test, here in its
exact binomial form.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, sqrt
from statistics import NormalDist

Z = NormalDist().inv_cdf(0.975)  # for intervals of 95 %


@dataclass(frozen=True)
class Accuracy:
    """The share of right answers among n texts, and its 95 % interval (all as fractions)."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return (
            f"{self.value:.1%} (95 % interval {self.low:.1%} to {self.high:.1%}, {self.n:,} texts)"
        )


@dataclass(frozen=True)
class Paired:
    """What model b is to model a on the same n texts; fractions, positive where b is better.

    `difference` of the accuracies with its 95 % interval, how often only a or only b was right, and
    the exact McNemar test's `p`: how likely so uneven a split is if neither is better.
    """

    difference: float
    low: float
    high: float
    only_a: int
    only_b: int
    p: float
    n: int

    def __str__(self) -> str:
        return (
            f"{100 * self.difference:+.1f} points (95 % interval {100 * self.low:+.1f} to "
            f"{100 * self.high:+.1f}; only one is right on {self.only_a} and {self.only_b} of "
            f"{self.n:,} texts, McNemar p = {self.p:.2g})"
        )


def accuracy(labels: Sequence[int], predictions: Sequence[int]) -> Accuracy:
    """Accuracy of predicted labels, with Wilson's 95 % interval.

    Raises ValueError unless both have one length >= 1 and hold whole numbers from 0 on.
    """
    right = _right(labels, predictions)
    n, share = len(right), sum(right) / len(right)
    centre = (share + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    # At none and all right, rounding would lead beyond 0 and 1.
    return Accuracy(share, max(0.0, centre - half), min(1.0, centre + half), n)


def paired(labels: Sequence[int], a: Sequence[int], b: Sequence[int]) -> Paired:
    """Compare the predictions of two models, a and b, on the same texts.

    Raises ValueError as `accuracy`.
    """
    pairs = list(zip(_right(labels, a), _right(labels, b), strict=True))
    n = len(pairs)
    only_a, only_b = sum(x and not y for x, y in pairs), sum(y and not x for x, y in pairs)
    difference, differing = (only_b - only_a) / n, only_a + only_b
    half = Z * sqrt(max(differing - (only_b - only_a) ** 2 / n, 0)) / n
    tail = sum(comb(differing, k) for k in range(min(only_a, only_b) + 1)) / 2**differing
    return Paired(
        difference, difference - half, difference + half, only_a, only_b, min(1.0, 2 * tail), n
    )


def _right(labels: Sequence[int], predictions: Sequence[int]) -> list[bool]:
    """Which predictions are right."""
    if len(labels) != len(predictions) or not len(labels):
        raise ValueError(
            f"{len(predictions)} predictions for {len(labels)} labels: there has to be one for each"
        )
    return [
        _label(label) == _label(prediction)
        for label, prediction in zip(labels, predictions, strict=True)
    ]


def _label(value) -> int:
    """A label as a number."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = -1
    if number < 0 or number != value:
        raise ValueError(
            f"{value!r} is no label: they are whole numbers from 0 on; leave texts without one out"
        )
    return number
