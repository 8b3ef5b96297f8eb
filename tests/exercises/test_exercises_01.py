"""Notebook 01's exercises: the checks know the usual mistakes."""

import copy
from collections import UserDict

from helpers import exercises
from helpers.lessons import placement

import pytest
import torch
from torch import nn


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


def own_move(thing, device, encoding):
    """A move that treats a BatchEncoding as `encoding` says."""
    if isinstance(thing, UserDict):
        return encoding(thing)
    if isinstance(thing, dict):
        return {key: own_move(value, device, encoding) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return type(thing)(own_move(value, device, encoding) for value in thing)
    return thing.to(device) if isinstance(thing, torch.Tensor) else thing


def only_dicts(thing, device):
    return own_move(thing, device, encoding=lambda found: found)


def in_place(thing, device):
    return own_move(thing, device, encoding=lambda found: found.to(device))


def overwrites(thing, device):
    moved = placement.move(thing, device)
    thing.update(pair=moved["pair"])
    return moved


def move_and(**changes):
    return lambda thing, device: placement.move(thing, device) | changes


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (placement.move, "correct"),
        (only_dicts, "a BatchEncoding is a UserDict"),
        (in_place, "works in place"),
        (overwrites, "has changed"),
        (lambda thing, device: copy.copy(thing), "is still on cpu"),
        (lambda thing, device: None, "it raised AttributeError"),
        (move_and(name="meta"), "come back as they are"),
        (move_and(pair=[]), "came back as others"),
        (move_and(encodings=[{}]), "should be a BatchEncoding on meta"),
    ],
)
def test_exercise_2(answer, verdict, said):
    assert verdict in said(exercises.check_01_2, answer)
