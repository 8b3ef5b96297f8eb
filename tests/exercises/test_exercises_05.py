"""Exercises of notebook 05: right answers are right, and each usual mistake is named."""

from helpers import exercises

import numpy
import pytest


def rule(
    steps=lambda bits: 2**bits - 1, hold_zero=True, rounded=round, lowest=0, one=1.0, clip=False
):
    """Variants of the rule for scale and zero point, right by default."""

    def scale_and_zero(x, bits):
        low, high = (min(x.min(), 0), max(x.max(), 0)) if hold_zero else (x.min(), x.max())
        scale = (high - low) / steps(bits) or one
        zero = rounded(-low / scale) + lowest
        return scale, min(max(zero, 0), 2**bits - 1) if clip else zero

    return scale_and_zero


def equal_apart(x, bits):
    """Equal values as a case of its own: one step is the value."""
    return (float(x[0]), 0) if x.min() == x.max() > 0 else rule()(x, bits)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (rule(), "correct"),
        (rule(rounded=lambda z: numpy.float32(numpy.round(z))), "correct"),
        (equal_apart, "correct"),
        (rule(steps=lambda bits: 2**bits), "255 steps between them"),
        (rule(rounded=float), "between two levels"),
        (rule(rounded=int), "rounded to the nearest"),
        (rule(lowest=-128), "the lowest value is level 0"),
        (rule(hold_zero=False), "widen the range until it holds zero"),
        (rule(hold_zero=False, clip=True), "only positive values and 8 bits a value comes back"),
        (rule(steps=lambda bits: 2 ** (bits - 1) - 1), "comes back wrong"),
        (rule(one=0.0), "for zeros and 8 bits it raised"),
        (lambda x, bits: (float("nan"), 0), "the scale is nan"),
        (lambda x, bits: 0.5, "two things, scale and zero point, not 0.5"),
    ],
)
def test_1_scale_and_zero_point(answer, verdict, said):
    assert verdict in said(exercises.check_05_1, answer)


def smallest(loss):
    """The smallest file among those whose loss, a function of a row, is at most max_points."""

    def choose(table, points):
        return min((r for r in table if loss(r) <= points), key=lambda r: r["megabytes"])["name"]

    return choose


def first(table, points):
    return next(row["name"] for row in table if -row["low"] <= points)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (smallest(lambda row: -row["low"]), "correct"),
        (smallest(lambda row: -(row["low"] + row["high"]) / 2), "in the middle of its interval"),
        (smallest(lambda row: abs(row["low"] + row["high"]) / 2), "in the middle of its interval"),
        (smallest(lambda row: -row["high"]), "is not safe"),
        (smallest(lambda row: row["low"]), "is not safe"),
        (smallest(lambda row: max(abs(row["low"]), abs(row["high"]))), "better is safe and has"),
        (smallest(lambda row: 1e-9 - row["low"]), "with 0.5 points"),
        (lambda table, points: max(table, key=lambda row: row["low"])["name"], "is safe and has"),
        (first, "float32 (91.2 MB) is safe"),
        (lambda table, points: table[0], "a name of the table"),
        (lambda table, points: None, "a name of the table, not None"),
    ],
)
def test_2_the_bad_end_of_the_interval_counts(answer, verdict, said):
    assert verdict in said(exercises.check_05_2, answer)
