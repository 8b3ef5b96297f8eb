"""Notebook 03's exercises: the files need a repair, and the checks know the usual mistakes."""

from helpers.exercises import lesson_03
from helpers.exercises.lesson_03 import check_03_1, check_03_2
from helpers.exercises.tiny_models import tiny_bert
from helpers.lessons import checkpoints
from helpers.lessons.checkpoint_files import CheckpointError

import pytest
import torch

TURNED = ("query.weight", "key.weight", "value.weight", "dense.weight")


@pytest.fixture
def files(tmp_path):
    return lesson_03.write_puzzles(tmp_path)


def test_no_file_loads_as_it_is(files):
    for path in files:
        with pytest.raises(CheckpointError):
            checkpoints.load(path, tiny_bert)


def test_exercise_1(files, said):
    state, model = torch.load(files[0]), tiny_bert()
    model.load_state_dict(state, strict=False)
    assert "strict=False skips" in said(check_03_1, model)
    model.load_state_dict({name.replace("blocks.", "layer."): state[name] for name in state})
    training = said(check_03_1, model.train())
    assert training.startswith("not quite, because the weights are right")
    assert said(check_03_1, model.eval()) == "correct"
    assert "not a dict" in said(check_03_1, state)
    assert "another model" in said(check_03_1, torch.nn.Linear(2, 2))


def test_exercise_2(files, said):
    state, model = torch.load(files[1]), tiny_bert()
    own, some, turned = model.state_dict(), {}, {}
    for old, value in state.items():
        name = old.removeprefix("bert.")
        some[name] = value if value.shape == own[name].shape else value.T
        turned[name] = value.T if name.endswith(TURNED) else value
    model.load_state_dict(some)
    assert "Square matrices fit either way round" in said(check_03_2, model)
    model.load_state_dict(turned)
    assert said(check_03_2, model) == "correct"
