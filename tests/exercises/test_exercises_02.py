"""Notebook 02's exercises: the checks know the usual mistakes."""

import functools

from helpers.exercises import lesson_02

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification


def train(batch, device, steps=1, head_only=False, change=lambda model: model, pieces=4):
    """Train BERT-base in micro-batches, with so many steps of the optimizer."""
    model = BertForSequenceClassification(BertConfig()).to(device).train()
    model = change(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model.base_model.requires_grad_(not head_only)
    for piece in range(pieces):
        part = {name: rows.chunk(pieces)[piece] for name, rows in batch.items()}
        (model(**part).loss / pieces).backward()
        if (piece + 1) % (pieces // steps) == 0:
            optimizer.step()


def half_of_it(batch, device):
    train({name: rows[:16] for name, rows in batch.items()}, device, pieces=2)


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
        (1, train, "correct"),
        (1, lambda *given: None, "on 0 tokens"),
        (1, half_of_it, "on 8,192 tokens"),
        (1, functools.partial(train, pieces=1), "out of memory in `(model(**part).loss"),
        (1, functools.partial(train, steps=2, pieces=8), "took 2 steps"),
        (1, functools.partial(train, head_only=True), "1,538 of 109,483,778 weights"),
        (1, functools.partial(train, change=lambda model: model.bfloat16()), "in float32, not all"),
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
