"""Exercises of notebook 08: each mistake is named, right answers are right."""

from helpers import exercises

import numpy as np
import pytest


def stages_in_turn(texts, stages, threshold, strictly=False, everything=False):
    labels, rest = np.zeros(len(texts), int), np.arange(len(texts))
    for number, stage in enumerate(stages):
        found = stage([texts[row] for row in rest])
        labels[rest] = found.argmax(1)
        sure = found.max(1) > threshold if strictly else found.max(1) >= threshold
        rest = rest if everything else rest[~sure]
        if not len(rest) or number == len(stages) - 1:
            return labels
    return labels


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (stages_in_turn, "correct"),
        (lambda *given: stages_in_turn(*given, strictly=True), "exactly as sure"),
        (lambda *given: stages_in_turn(*given, everything=True), "that saves nothing"),
        (lambda *given: 1 - stages_in_turn(*given), "expected [1, 1, 0, 0, 1]"),
        (lambda texts, stages, threshold: stages[0](texts).argmax(1), "the last stage should"),
        (lambda texts, stages, threshold: None, "return the labels"),
    ],
)
def test_1_a_cascade(said, answer, words):
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
