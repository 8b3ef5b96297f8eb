"""Exercises of notebook NN: each mistake is named, right answers are right."""

from helpers import exercises

import pytest


@pytest.mark.parametrize(
    ("answer", "words"),
    [(..., "not answered yet"), (2, "the shorter text"), (7, "does not have 7"), (5, "correct")],
)
def test_1_the_longer_text(said, answer, words):
    assert words in said(exercises.check_NN_1, answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda text: len(text.split(" ")), "it gives 4"),
        (lambda text: len(text.split()), "correct"),
        (3, "should be a function"),
    ],
)
def test_2_a_function(said, answer, words):
    assert words in said(exercises.check_NN_2, answer)
