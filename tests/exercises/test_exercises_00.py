"""Notebook 00's exercises: the checks know the usual mistakes."""

from helpers import exercises

import pytest
import torch


def says(chance):
    return lambda texts: torch.full((len(texts),), chance)


@pytest.mark.parametrize(
    ("answer", "chance", "verdict"),
    [
        (("It is impossible to dislike.", "positive"), 0.1, "correct"),
        (["It is impossible to dislike.", "positive"], 0.1, "correct"),
        (("I loved every minute.", "positive"), 0.9, "agrees with you: P(positive) = 0.90"),
        (("Dull.", "negative"), 0.9, "three words"),
        (("It is impossible to dislike.", "good"), 0.1, "the answer is a pair"),
        ("It is impossible to dislike.", 0.1, "the answer is a pair"),
    ],
)
def test_exercise_1(answer, chance, verdict, said):
    assert verdict in said(exercises.check_00_1, answer, says(chance))


def overwriting_max(hidden, mask):
    hidden[mask == 0] = float("-inf")
    return hidden.amax(dim=1)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (
            lambda hidden, mask: hidden.masked_fill(mask[..., None] == 0, float("-inf")).amax(1),
            "correct",
        ),
        (lambda hidden, mask: hidden.amax(1), "padding wins"),
        (lambda hidden, mask: (hidden * mask[..., None]).amax(1), "set to 0 wins"),
        (lambda hidden, mask: hidden.max(1), "use .amax(dim=1)"),
        (lambda hidden, mask: hidden.amax(2), "shape (2, 3)"),
        (
            lambda hidden, mask: hidden.masked_fill(mask[..., None] == 0, 9.0).amin(1),
            "not the largest",
        ),
        (overwriting_max, "the caller's tensor was changed"),
    ],
)
def test_exercise_2(answer, verdict, said):
    assert verdict in said(exercises.check_00_2, answer)
