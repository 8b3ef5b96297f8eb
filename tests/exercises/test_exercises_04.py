"""The exercises of notebook 04.

What is right passes, and each of the usual mistakes gets its own answer.
"""

from helpers import exercises
from helpers.core import quiet
from helpers.exercises import lesson_04
from helpers.lessons import onnx_export
from helpers.models import batching

import pytest
import torch


def said(capsys, number, *answer):
    getattr(exercises, f"check_04_{number}")(*answer)
    return capsys.readouterr().out.strip()


def written(path, inputs, **options):
    with quiet.quiet(stdout=True):
        torch.onnx.export(
            lesson_04.new_model(),
            (),
            path,
            kwargs=inputs,
            opset_version=23,
            verbose=False,
            **options,
        )
    return path


@pytest.fixture(scope="module")
def puzzle(tmp_path_factory):
    return lesson_04.write_puzzle(tmp_path_factory.mktemp("puzzle"))


def test_exercise_1(tmp_path, capsys, puzzle):
    assert (
        said(capsys, 1, onnx_export.export(lesson_04.new_model(), tmp_path / "right.onnx").path)
        == "correct"
    )
    inputs = {name: torch.ones(2, 8, dtype=torch.int64) for name in onnx_export.NAMES}
    fixed = written(tmp_path / "fixed.onnx", inputs)
    assert "input_ids has a fixed size of 2: name both axes" in said(capsys, 1, fixed)
    ids = {"input_ids": inputs["input_ids"]}
    lacking = written(
        tmp_path / "lacking.onnx", ids, dynamic_shapes={"input_ids": {0: "batch", 1: "length"}}
    )
    assert "its inputs are ['input_ids']" in said(capsys, 1, lacking)
    assert "is each input in place?" in said(capsys, 1, puzzle)
    assert "absent.onnx" in said(capsys, 1, tmp_path / "absent.onnx")
    assert "not answered" in said(capsys, 1, ...)


def test_exercise_2(capsys, puzzle):
    def repair(inputs):
        swapped = {"attention_mask": "token_type_ids", "token_type_ids": "attention_mask"}
        return {name: inputs[swapped.get(name, name)] for name in inputs}

    assert said(capsys, 2, repair, puzzle) == "correct"
    assert "still differs" in said(capsys, 2, dict, puzzle)
    assert "still differs" in said(
        capsys, 2, lambda inputs: inputs | {"token_type_ids": inputs["input_ids"] * 0}, puzzle
    )
    assert "the file needs attention_mask" in said(
        capsys, 2, lambda i: {"input_ids": i["input_ids"]}, puzzle
    )


def by_budget(lengths):
    return batching.batches(lengths, 32, 1024)


def unsorted(lengths):
    groups = [[]]
    for position in range(len(lengths)):
        longer = [*groups[-1], position]
        if len(longer) > 32 or len(longer) * max(lengths[p] for p in longer) > 1024:
            groups.append([])
        groups[-1].append(position)
    return groups


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (by_budget, "correct"),
        (unsorted, "put texts of like length together"),
        (lambda lengths: [[position] for position in range(len(lengths))], "as many as fit"),
        (lambda lengths: batching.batches(lengths, batch_size=32), "tokens with padding"),
        (lambda lengths: batching.batches(lengths, max_tokens=1024), "a batch has"),
        (lambda lengths: by_budget(lengths)[1:], "in one batch, once"),
    ],
)
def test_exercise_3(capsys, answer, verdict):
    assert verdict in said(capsys, 3, answer)
