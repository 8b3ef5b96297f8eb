"""helpers.exercises: each check says "not answered yet", finds the mistakes that learners make, and says "correct"."""

import copy
from collections import UserDict

from helpers import exercises, placement

import pytest
import torch
from torch import nn


def said(capsys, check, answer):
    assert check(answer) is None  # a value would be shown below the cell
    return capsys.readouterr().out.strip()


CHECKS = [getattr(exercises, name) for name in dir(exercises) if name.startswith("check_")]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_unanswered_and_nonsense(check, capsys):
    assert said(capsys, check, None) == said(capsys, check, ...) == "not answered yet"
    for nonsense in (0, "answer", lambda *_: 1 / 0, object):
        assert said(capsys, check, nonsense).startswith("not quite, because ")
    assert check.__doc__


def module(register, value=0.5):
    class Halved(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            register(self, torch.full((4,), value))

        def forward(self, x):
            return self.linear(x) * self.scale

    return Halved


def buffer(persistent):
    return lambda self, scale: self.register_buffer("scale", scale, persistent=persistent)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (module(buffer(False)), "correct"),
        (module(buffer(True)), "state dict"),
        (module(lambda self, scale: setattr(self, "scale", scale)), "scale stayed behind"),
        (module(lambda self, scale: setattr(self, "scale", nn.Parameter(scale))), "would train it"),
        (module(lambda self, scale: setattr(self, "scale", 0.5)), "keep scale as a tensor"),
        (module(buffer(False), value=2.0), "no longer computes"),
        (module(buffer(False))(), "the class itself"),
    ],
)
def test_notebook_01_exercise_1(answer, verdict, capsys):
    assert verdict in said(capsys, exercises.check_01_1, answer)


def only_dicts(thing, device):
    if isinstance(thing, dict):
        return {key: only_dicts(value, device) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return type(thing)(only_dicts(value, device) for value in thing)
    return thing.to(device) if isinstance(thing, torch.Tensor) else thing


def in_place(thing, device):
    if isinstance(thing, UserDict):
        return thing.to(device)
    if isinstance(thing, dict):
        return {key: in_place(value, device) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return type(thing)(in_place(value, device) for value in thing)
    return thing.to(device) if isinstance(thing, torch.Tensor) else thing


def overwrites(thing, device):
    moved = placement.move(thing, device)
    thing.update(label=moved["label"])
    return moved


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (placement.move, "correct"),
        (only_dicts, "in the BatchEncoding in the list is still on cpu"),
        (in_place, "works in place"),
        (overwrites, "has been changed"),
        (lambda thing, device: copy.copy(thing), "is still on cpu"),
        (lambda thing, device: None, "it returned None"),
        (lambda thing, device: placement.move(thing, device) | {"name": device}, "come back as they are"),
        (lambda thing, device: placement.move(thing, device) | {"pair": []}, "as something else"),
        (lambda thing, device: placement.move(thing, device) | {"encodings": [{}]}, "BatchEncoding in the list came"),
    ],
)
def test_notebook_01_exercise_2(answer, verdict, capsys):
    assert verdict in said(capsys, exercises.check_01_2, answer)


def after(model, device):
    return torch.optim.AdamW(model.to(device).parameters(), lr=0.1)


def before(model, device):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model.to(device)
    return optimizer


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (after, "correct"),
        (before, "only then build the optimizer"),
        (lambda model, device: torch.optim.SGD(model.parameters()), "not moved: it is still on cpu"),
        (lambda model, device: model.to(device), "not Linear"),
        (lambda model, device: torch.optim.SGD([model.to(device).weight], lr=0.1), "left some"),
        (lambda model, device: torch.optim.SGD(model.to(device).parameters(), lr=0.0), "left some"),
    ],
)
def test_notebook_01_exercise_3(answer, verdict, capsys):
    assert verdict in said(capsys, exercises.check_01_3, answer)
