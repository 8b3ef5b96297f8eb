"""Accuracy with its uncertainty: one model's interval, and two models on the same texts in pairs.

Sources: Wilson, JASA 22 (1927) 209-212, for the interval of a share; McNemar, Psychometrika 12
(1947) 153-157, for the paired test, here in its exact binomial form.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, sqrt
from statistics import NormalDist

import numpy as np

Z = NormalDist().inv_cdf(0.975)  # for intervals of 95 %


@dataclass(frozen=True)
class Accuracy:
    """The share of right answers among n texts, and its 95 % interval (all as fractions)."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        interval = f"{self.low:.1%} to {self.high:.1%}"
        return f"{self.value:.1%} (95 % interval {interval}, {self.n:,} texts)"


@dataclass(frozen=True)
class Paired:
    """How model b compares with model a on the same n texts; positive where b is better."""

    difference: float  # of the accuracies, a fraction, and its 95 % interval
    low: float
    high: float
    only_a: int  # how often only a was right
    only_b: int
    p: float  # McNemar's exact test: how likely so uneven a split is if neither is better
    n: int

    def __str__(self) -> str:
        return (
            f"{100 * self.difference:+.1f} points (95 % interval {100 * self.low:+.1f} to "
            f"{100 * self.high:+.1f}; only one is right on {self.only_a} and {self.only_b} of "
            f"{self.n:,} texts, McNemar p = {self.p:.2g})"
        )


def _right(labels: Sequence[int], predictions: Sequence[int]) -> np.ndarray:
    """Return which predictions are right (bool, n); scores or missing labels would seem wrong."""
    if len(labels) != len(predictions) or not len(labels):
        counts = f"{len(predictions)} predictions for {len(labels)} labels"
        raise ValueError(f"{counts}: there has to be one for each")
    pair = np.asarray(labels), np.asarray(predictions)
    for values in pair:
        numbers = values.dtype.kind in "biuf" and values.ndim == 1
        if not (numbers and (values >= 0).all() and (values == np.floor(values)).all()):
            message = "labels must be whole numbers from 0 on; drop texts without one"
            raise ValueError(f"invalid labels {values!r:.80}: {message}")
    return pair[0] == pair[1]


def accuracy(labels: Sequence[int], predictions: Sequence[int]) -> Accuracy:
    """Return the accuracy of predicted labels, with Wilson's 95 % interval."""
    right = _right(labels, predictions)
    n, share = len(right), int(right.sum()) / len(right)
    centre = (share + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    # At none and all right, rounding would lead beyond 0 and 1.
    return Accuracy(share, max(0.0, centre - half), min(1.0, centre + half), n)


def paired(labels: Sequence[int], a: Sequence[int], b: Sequence[int]) -> Paired:
    """Compare the predictions of two models, a and b, on the same texts."""
    by_a, by_b = _right(labels, a), _right(labels, b)
    only_a, only_b, n = int((by_a & ~by_b).sum()), int((by_b & ~by_a).sum()), len(by_a)
    difference, differing = (only_b - only_a) / n, only_a + only_b
    half = Z * sqrt(max(differing - (only_b - only_a) ** 2 / n, 0)) / n
    tail = sum(comb(differing, k) for k in range(min(only_a, only_b) + 1)) / 2**differing
    p = min(1.0, 2 * tail)
    return Paired(difference, difference - half, difference + half, only_a, only_b, p, n)
