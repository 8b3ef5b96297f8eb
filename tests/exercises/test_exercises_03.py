"""The exercises of notebook 03: the three files need a repair, and the checks know the mistakes that learners make."""

from helpers import exercises
from helpers.exercises import lesson_03
from helpers.lessons import checkpoint_files, checkpoints

import pytest
import torch


def said(capsys, number, answer):
    getattr(exercises, f"check_03_{number}")(answer)
    return capsys.readouterr().out.strip()


@pytest.fixture
def files(tmp_path):
    return lesson_03.write_puzzles(tmp_path)


def strip(state):
    return {name.replace("_orig_mod.", ""): value for name, value in state.items()}


def test_no_file_loads_as_it_is(files):
    for path in files:
        with pytest.raises(checkpoint_files.CheckpointError):
            checkpoints.load(path, lesson_03.new_model)


def test_exercise_1(files, capsys):
    state, model = torch.load(files[0]), lesson_03.new_model()
    model.load_state_dict(state, strict=False)
    assert "strict=False may have skipped" in said(capsys, 1, model)
    model.load_state_dict(strip(state))
    assert said(capsys, 1, model.train()).startswith("not quite, because the weights are right")
    assert said(capsys, 1, model.eval()) == "correct"
    model.embeddings.position_ids = model.embeddings.position_ids.flip(1)
    assert "compare the buffers" in said(capsys, 1, model)
    assert "not a dict" in said(capsys, 1, state)
    assert "another model" in said(capsys, 1, torch.nn.Linear(2, 2))


def test_exercise_2(files, capsys):
    allow = checkpoint_files.inspect(files[1]).refused
    last, best = (
        checkpoints.load(files[1], lesson_03.new_model, key=key, allow=allow).model
        for key in ("last", "best")
    )
    assert "what do the owner's options say" in said(capsys, 2, last)
    assert said(capsys, 2, best) == "correct"


def test_exercise_3(files, capsys):
    state, model = torch.load(files[2]), lesson_03.new_model()
    shapes = {f"bert.{name}": value.shape for name, value in model.state_dict().items()}
    some = {
        name: value if value.shape == shapes.get(name.replace("gamma", "weight")) else value.T
        for name, value in state.items()
    }
    checkpoints.save(some, files[2])
    half = checkpoints.load(files[2], lesson_03.new_model).model
    assert "Square matrices fit either way round" in said(capsys, 3, half)
    turned = {name: value.T if lesson_03._turned(name) else value for name, value in state.items()}
    checkpoints.save(turned, files[2])
    assert said(capsys, 3, checkpoints.load(files[2], lesson_03.new_model).model) == "correct"
