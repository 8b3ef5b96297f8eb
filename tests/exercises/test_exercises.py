"""exercises.

Each check says "not answered yet", finds the mistakes that learners make, and says "correct".
"""

import copy
import importlib
import pkgutil
from collections import UserDict

from helpers import exercises
from helpers.lessons import placement

import pytest
import torch
from torch import nn


def said(capsys, check, answer):
    assert check(answer) is None  # a value would be shown below the cell
    return capsys.readouterr().out.strip()


MODULES = [
    importlib.import_module(f"helpers.exercises.{found.name}")
    for found in pkgutil.iter_modules(exercises.__path__)
]
CHECKS = [
    getattr(exercises, name)
    for module in MODULES
    for name in dir(module)
    if name.startswith("check_")
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_unanswered_and_nonsense(check, capsys):
    assert said(capsys, check, None) == said(capsys, check, ...) == "not answered yet"
    for nonsense in (0, "answer", lambda *_: 1 / 0, object):
        assert said(capsys, check, nonsense).startswith("not quite, because ")
    assert check.__doc__


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
def test_notebook_00_exercise_1(answer, chance, verdict, capsys):
    exercises.check_00_1(answer, says(chance))
    assert verdict in capsys.readouterr().out


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
def test_notebook_00_exercise_2(answer, verdict, capsys):
    assert verdict in said(capsys, exercises.check_00_2, answer)


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


def buffer(persistent):
    return lambda self, scale: self.register_buffer("scale", scale, persistent=persistent)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (module(buffer(False)), "correct"),
        (module(buffer(True)), "state dict"),
        (module(lambda self, scale: setattr(self, "scale", scale)), "scale stayed behind"),
        (module(lambda self, scale: setattr(self, "scale", nn.Parameter(scale))), "would train it"),
        (
            module(lambda self, scale: setattr(self, "scale", nn.Parameter(scale, False))),
            "a buffer says what it is",
        ),
        (
            type(
                "Own",
                (module(lambda self, scale: setattr(self, "scale", scale)),),
                {"to": moves_itself},
            ),
            "scale stayed",
        ),
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
        (only_dicts, "a BatchEncoding is a UserDict"),
        (in_place, "works in place"),
        (overwrites, "has been changed"),
        (lambda thing, device: copy.copy(thing), "is still on cpu"),
        (lambda thing, device: None, "it returned None"),
        (
            lambda thing, device: placement.move(thing, device) | {"name": device},
            "come back as they are",
        ),
        (
            lambda thing, device: placement.move(thing, device) | {"pair": []},
            "'pair' came back as something else: list",
        ),
        (
            lambda thing, device: placement.move(thing, device) | {"encodings": [{}]},
            "BatchEncoding in the list came",
        ),
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
        (before, "built before the move"),
        (
            lambda model, device: torch.optim.SGD(model.parameters()),
            "not moved: it is still on cpu",
        ),
        (lambda model, device: model.to(device), "not Linear"),
        (lambda model, device: torch.optim.SGD([model.to(device).weight], lr=0.1), "left some"),
        (lambda model, device: torch.optim.SGD(model.to(device).parameters(), lr=0.0), "left some"),
    ],
)
def test_notebook_01_exercise_3(answer, verdict, capsys):
    assert verdict in said(capsys, exercises.check_01_3, answer)


@pytest.mark.parametrize("answer", [0, "", (), {}, torch.ones(2), nn.Linear(1, 1).weight])
@pytest.mark.parametrize(
    "check", [exercises.check_00_2, exercises.check_01_2, exercises.check_01_3]
)
def test_a_value_in_place_of_a_function(check, answer, capsys):
    check(answer)
    assert "it should be a function, named without brackets, not a " in capsys.readouterr().out
