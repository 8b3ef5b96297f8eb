"""Exercises of notebook 05: right answers are right, and each usual mistake is named."""

from helpers import exercises
from helpers.core.quiet import quiet
from helpers.exercises import lesson_05
from helpers.lessons import quantize_onnx, quantize_torch

import pytest
import torch


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return lesson_05.write_files(tmp_path_factory.mktemp("int8"))


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        ({}, "correct"),
        ({"weights": "uint8", "reduced_range": True}, "correct"),
        ({"operators": ["MatMul", "Gemm"]}, "are the embeddings in it"),
        ({"per_channel": False}, "a matrix's only scale coarse"),
    ],
)
def test_1_small_and_near(files, options, verdict, said):
    made = files[0].with_name("int8.onnx")
    quantize_onnx.onnx_dynamic(files[0], made, **options)
    assert verdict in said(exercises.check_05_1, made)


def test_1_the_float_file_is_no_answer(files, said):
    assert "100% of the float file's bytes" in said(exercises.check_05_1, files[0])
    assert "FileNotFoundError" in said(exercises.check_05_1, files[0].with_name("none.onnx"))


def test_2_int8_before_it_is_loaded(files, said):
    with quiet():
        state = torch.load(files[1], weights_only=True)
    floating = lesson_05.outlier_model()
    floating.load_state_dict(state, strict=False)
    assert "its linear layers are float" in said(exercises.check_05_2, floating)
    model = quantize_torch.torch_dynamic(
        lesson_05.tiny_bert(2, type(floating), vocab_size=2000)
    ).model
    assert "off: was everything loaded" in said(exercises.check_05_2, model)
    model.load_state_dict(state)
    assert said(exercises.check_05_2, model) == "correct"
    assert "not a OrderedDict" in said(exercises.check_05_2, state)
