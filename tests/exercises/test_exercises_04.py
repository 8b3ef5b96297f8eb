"""The exercises of notebook 04: what is right passes, each usual mistake gets its own answer."""

from helpers.core.quiet import quiet
from helpers.exercises.lesson_04 import check_04_1, check_04_2
from helpers.exercises.tiny_models import new_model
from helpers.lessons import onnx_export
from helpers.models import batching
from helpers.recipes.onnx_export import INPUTS

import onnx
import pytest
import torch

FREE = {0: "batch", 1: "length"}


def written(path, inputs, **options):
    with quiet(stdout=True):
        torch.onnx.export(
            new_model(), f=path, kwargs=inputs, opset_version=23, verbose=False, **options
        )
    return path


@pytest.mark.slow
def test_exercise_1(tmp_path, said):
    right = onnx_export.export(new_model(), tmp_path / "right.onnx")
    assert said(check_04_1, right) == "correct"
    inputs = {name: torch.ones(2, 8, dtype=torch.int64) for name in INPUTS}
    fixed = written(tmp_path / "fixed.onnx", inputs)
    assert "input_ids has a fixed size of 2: name both axes" in said(check_04_1, fixed)
    ids = {"input_ids": inputs["input_ids"]}
    lacking = written(tmp_path / "lacking.onnx", ids, dynamic_shapes={"input_ids": FREE})
    assert "its inputs are ['input_ids']" in said(check_04_1, lacking)
    exchanged = onnx.load(right)
    names = {"attention_mask": "token_type_ids", "token_type_ids": "attention_mask"}
    for node in exchanged.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    onnx.save(exchanged, tmp_path / "exchanged.onnx")
    assert "is each input in place?" in said(check_04_1, tmp_path / "exchanged.onnx")
    assert "absent.onnx" in said(check_04_1, tmp_path / "absent.onnx")


def unsorted(lengths):
    groups = [[]]
    for position in range(len(lengths)):
        longer = [*groups[-1], position]
        if len(longer) * max(lengths[p] for p in longer) > 1024:
            groups.append([])
        groups[-1].append(position)
    return groups


def ascending(lengths):
    places = sorted(range(len(lengths)), key=lambda place: lengths[place])
    return [[places[p] for p in group] for group in unsorted([lengths[p] for p in places])]


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (lambda lengths: batching.batches(lengths, 1024), "correct"),
        (ascending, "correct"),
        (unsorted, "put texts of like length together"),
        (lambda lengths: [[position] for position in range(len(lengths))], "as many as fit"),
        (lambda lengths: batching.batches(lengths, 2048), "tokens with padding"),
        (lambda lengths: batching.batches(lengths, 1024)[1:], "in one batch, once"),
    ],
)
def test_exercise_2(said, answer, verdict):
    assert verdict in said(check_04_2, answer)
