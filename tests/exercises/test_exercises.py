"""Every exercise's check says "not answered yet", survives nonsense and returns nothing."""

import importlib
import pkgutil

from helpers import exercises

import pytest

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
def test_unanswered_and_nonsense(check, said):
    assert said(check, None) == said(check, ...) == "not answered yet"
    for nonsense in (0, "answer", lambda *_: 1 / 0, object):
        assert said(check, nonsense).startswith("not quite, because ")
    assert check.__doc__
    assert check(None) is None  # a value would be shown below the cell
