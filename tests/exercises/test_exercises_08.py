"""Exercises of notebook 08: each mistake is named, right answers are right."""

from helpers import exercises

import pytest


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda share, factor: 1 / (1 - share + share / factor), "correct"),
        (lambda share, factor: 1 - share + share / factor, "not 0.75: that is its time"),
        (lambda share, factor: 1 - share + share * factor, "Add up times"),
        (lambda share, factor: factor, "should give 1.33, not 2"),
        (lambda share, factor: 1 / (1 - share) if share < 1 else factor, "should give 1.33"),
        (lambda share, factor: str(share), "a number, not str"),
    ],
)
def test_1_amdahl(said, answer, words):
    assert words in said(exercises.check_08_1, answer)


def beats(other, row, strictly=True):
    at_least = other["ms"] <= row["ms"] and other["accuracy"] >= row["accuracy"]
    more = other["ms"] < row["ms"] or other["accuracy"] > row["accuracy"]
    return other is not row and at_least and (more or not strictly)


def front(rows, strictly=True):
    return [r["name"] for r in rows if not any(beats(other, r, strictly) for other in rows)]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (front, "correct"),
        (lambda rows: set(front(rows)), "correct"),
        (lambda rows: (name for name in front(rows)), "correct"),
        (lambda rows: front(rows, strictly=False), "both stay"),
        (lambda rows: [*front(rows), "slow"], "slow is slower than large"),
        (lambda rows: [*front(rows), "late"], "late is no more accurate"),
        (lambda rows: [*front(rows), "twin"], "twin takes as long"),
        (lambda rows: front(rows)[1:], "large is missing"),
        (lambda rows: [*front(rows), "another"], "another is not among the rows"),
        (lambda rows: "large", "list of names"),
        (lambda rows: None, "list of names"),
    ],
)
def test_2_the_front(said, answer, words):
    assert words in said(exercises.check_08_2, answer)
