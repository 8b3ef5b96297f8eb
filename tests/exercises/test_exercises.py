"""Every exercise's check says "not answered yet", survives nonsense and returns nothing."""

import importlib
import pkgutil
import time

from helpers import exercises
from helpers.exercises import exercise, record

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


@exercise
def check_07_1(answer):
    return None if answer == 1 else "it is not 1"


def test_only_right_answers_are_recorded_and_stay(tmp_path, monkeypatch, said):
    folder = tmp_path / "own"
    monkeypatch.setenv("BERT_PROGRESS", str(folder))
    wrong = [said(check_07_1, answer) for answer in (None, ..., 2)]
    assert not folder.exists()
    assert said(check_07_1, 1) == "correct"
    assert abs((folder / "check_07_1").stat().st_mtime - time.time()) < 60  # its date
    (folder / "check_07_1").write_bytes(b"\xff")  # damaged: that it is there says enough
    assert [said(check_07_1, answer) for answer in (None, ..., 2, 1)] == [*wrong, "correct"]
    assert "\n06  0 of 2, open: 1, 2\n07  1 of 2, open: 2\n" in said(exercises.progress)
    for check in CHECKS:
        record.add(check.__name__)
    assert "open" not in said(exercises.progress)
    assert len(list(folder.iterdir())) == len(CHECKS)


def test_where_nothing_can_be_recorded_a_sentence_says_so(monkeypatch, said):
    monkeypatch.setenv("BERT_PROGRESS", "~nobody-here/folder")
    assert said(check_07_1, 1).startswith("correct\n(This is not recorded for exercises.progress()")
    monkeypatch.setenv("BERT_PROGRESS", __file__)
    assert said(check_07_1, 1).startswith("correct\n(This is not recorded for exercises.progress()")
    assert "\n07  0 of 2" in said(exercises.progress)
