"""Notebook 02's exercises: the checks know the usual mistakes."""

from helpers.exercises import lesson_02

import pytest
import torch

FITS = {"batch": 2, "accumulate": 16}


def accumulated(model, micro_batches, scale=1 / 3):
    for micro in micro_batches:
        (model(**micro).loss * scale).backward()


def with_a_step(model, micro_batches):
    accumulated(model, micro_batches)
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def all_at_once(model, micro_batches):
    joined = {name: torch.cat([m[name] for m in micro_batches]) for name in micro_batches[0]}
    model(**joined).loss.backward()


def one_backward(model, micro_batches):
    sum(model(**micro).loss for micro in micro_batches).div(3).backward()


@pytest.mark.parametrize(
    ("number", "answer", "verdict"),
    [
        (1, FITS, "correct"),
        (1, FITS | {"dtype": torch.float32}, "correct"),
        (1, {"batch": 2}, "2 x 1 texts"),
        (1, {"batch": 32, "lora": 4}, "not every parameter"),
        (1, {"batch": 32, "dtype": "bfloat16"}, "stay in float32"),
        (1, {"batch": 32}, "largest part is activations"),
        (1, FITS | {"batch": "2"}, "not quite"),
        (2, accumulated, "correct"),
        (2, lambda model, parts: accumulated(model, parts, scale=1), "3 times too large"),
        (2, lambda model, parts: accumulated(model, parts[-1:]), "not those of the large batch"),
        (2, with_a_step, "weights have changed"),
        (2, lambda model, parts: None, "no gradients"),
        (2, all_at_once, "of 6 texts are alive at once"),
        (2, one_backward, "of 6 texts are alive at once"),
    ],
)
def test_exercises(number, answer, verdict, said):
    assert verdict in said(getattr(lesson_02, f"check_02_{number}"), answer)
