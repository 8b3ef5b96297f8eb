"""Notebook 01's exercises: the checks know the usual mistakes."""

import functools

from helpers import exercises

import pytest
import torch
from torch import nn
from transformers import AutoModel, AutoTokenizer


def module(register, value=0.5):
    class Halved(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            register(self, torch.full((4,), value))

        def forward(self, x):
            return self.linear(x) * self.scale

    return Halved


def moves_itself(self, device):
    """A module's own `to`, which is not called when the module is part of another."""
    self.scale = self.scale.to(device)
    return nn.Module.to(self, device)


def plain(self, scale):
    self.scale = scale


def parameter(trained):
    return lambda self, scale: setattr(self, "scale", nn.Parameter(scale, trained))


def buffer(persistent):
    return lambda self, scale: self.register_buffer("scale", scale, persistent=persistent)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (module(buffer(False)), "correct"),
        (module(buffer(True)), "state dict"),
        (module(plain), "scale stayed behind"),
        (module(parameter(True)), "a buffer is neither"),
        (module(parameter(False)), "a buffer is neither"),
        (type("Own", (module(plain),), {"to": moves_itself}), "scale stayed"),
        (module(lambda self, scale: setattr(self, "scale", 0.5)), "should stay a tensor"),
        (module(buffer(False), value=2.0), "no longer computes"),
        (module(buffer(False))(), "the class itself"),
    ],
)
def test_exercise_1(answer, verdict, said):
    assert verdict in said(exercises.check_01_1, answer)


def vectors(folder, texts, device_map, use=AutoModel.from_pretrained, pool=None, give=None):
    """An answer to exercise 2; `use` loads, `pool` makes one vector a text, `give` returns it."""
    model = use(folder, device_map=device_map)
    inputs = AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        hidden = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(-1)
    pooled = pool(hidden) if pool else (hidden * mask).sum(1) / mask.sum(1)
    return give(pooled) if give else pooled.numpy()


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, "correct"),
        ({"give": lambda pooled: pooled}, "not tensor(["),
        ({"give": lambda pooled: pooled.tolist()}, "not [["),
        ({"pool": lambda hidden: hidden}, "not array("),
        ({"pool": lambda hidden: hidden.mean(1)}, "the padding is in the mean"),
        ({"pool": lambda hidden: hidden[:, 0]}, "not the mean of the vectors"),
        ({"use": lambda folder, device_map: AutoModel.from_pretrained(folder)}, "raised nothing"),
    ],
)
def test_exercise_2(change, verdict, said):
    assert verdict in said(exercises.check_01_2, functools.partial(vectors, **change))
