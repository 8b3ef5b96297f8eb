"""Widgets: they show what the formulas give. Most are moved in a browser (test_lab.py)."""

import html

from helpers.core import plots
from helpers.lessons import affine
from helpers.widgets import chooser, quantization, temperature, tokens
from helpers.widgets.memory import memory_explorer

import numpy
import pandas
import pytest


def choice(explorer):
    return {control.description: control for control in explorer.children[:-1]}


def test_moving_a_control_changes_number_and_picture():
    explorer = memory_explorer()
    controls, out = choice(explorer), explorer.children[-1]
    moves = {"batch": 4, "length": 128, "model": "minilm", "mode": "inference"}
    for name, value in moves.items():
        before = out.value
        controls[name].value = value
        old, new = (text.split('alt="')[0] for text in (before, out.value))
        assert old != new
    assert controls["lever"].disabled
    code = html.unescape(out.value)
    assert """predict_peak("minilm", 4, 128, device="cuda", mode='inference'): 0.5""" in code
    assert "80 GiB: fits" in out.value


MATRIX = (
    numpy.random.default_rng(0).normal(0.01, 0.05, (6, 40)) * numpy.array([[1, 2, 1, 1, 8, 1]]).T
)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [2, 3, 8])
@pytest.mark.parametrize("shift", [0, 0.7, -0.7])
def test_no_value_is_off_by_more_than_half_a_step(bits, symmetric, per_channel, shift):
    values = MATRIX + shift
    restored, scale, zero = affine.affine(values, bits, symmetric, per_channel)
    assert scale.shape == zero.shape == ((6, 1) if per_channel else (1, 1))
    assert (numpy.abs(restored - values) <= scale / 2 * (1 + 1e-9)).all()
    levels = numpy.round(restored / scale + zero)
    assert numpy.allclose((levels - zero) * scale, restored)
    top = 2 ** (bits - 1) - 1
    assert levels.min() >= (-top if symmetric else 0)
    assert levels.max() <= (top if symmetric else 2**bits - 1)
    assert not symmetric or not zero.any()
    assert (zero == numpy.round(zero)).all()  # so 0 is a level


def test_affine_agrees_with_torch():
    restored, scale, zero = affine.affine(MATRIX, 8, False, True)
    torch = pytest.importorskip("torch")
    matrix, scales, zeros = (torch.tensor(x) for x in (MATRIX, scale[:, 0], zero[:, 0]))
    options = scales.float(), zeros.float(), 0, 0, 255
    made = torch.fake_quantize_per_channel_affine(matrix.float(), *options)
    assert numpy.abs(made.numpy() - restored).max() < 1e-5


def test_a_scale_a_row_is_closer_and_zeros_stay_zeros():
    errors = [affine.affine(MATRIX, 4, True, each)[0] - MATRIX for each in (False, True)]
    whole, row = (numpy.square(error).mean() for error in errors)
    assert row < whole
    spoiled = MATRIX.copy()
    spoiled[2] = 0
    assert not affine.affine(spoiled, 4, False, True)[0][2].any()
    assert not affine.affine(numpy.zeros((2, 3)), 8, True, False)[0].any()


def test_the_quantization_picture_gives_levels_and_errors():
    shown = quantization.quantization_picture(MATRIX, 3, True, True)
    error = affine.affine(MATRIX, 3, True, True)[0] - MATRIX
    share = numpy.sqrt(numpy.square(error).mean() / numpy.square(MATRIX).mean())
    words = ("3 bits, symmetric, a scale for each of 6 rows", "7 levels", 'alt="')
    for part in (*words, f"{abs(error).max():.4f}", f"{share:.2%}"):
        assert part in shown
    shown = quantization.quantization_picture(MATRIX, 8, False, False)
    assert "asymmetric, one scale: 256 levels" in shown
    zeros = numpy.zeros((2, 3))
    assert "square 0.00%" in quantization.quantization_picture(zeros, 8, False, False)


def test_softened_probabilities_are_the_formula():
    p, entropy, gradient = temperature.softened((4.0, 1.0, -2.0), 2.0)
    powers = numpy.exp([2.0, 0.5, -1.0])
    assert numpy.allclose(p, powers / powers.sum())
    assert entropy == pytest.approx(-(p * numpy.log2(p)).sum())
    assert gradient == pytest.approx(numpy.linalg.norm(p - 1 / 3) / 2)
    assert temperature.softened((7.0, 7.0), 0.5)[1:] == (1.0, 0.0)
    certain = temperature.softened((1000.0, -1000.0), 0.01)[:2]  # no overflow
    assert certain == (pytest.approx([1, 0]), 0.0)


NAMES = ["6 layers", "3 layers, int8", "3 layers, int8, one by one", "2 layers, int8", "baseline"]
PIPELINES = pandas.DataFrame(
    {"ms": [2.0, 0.4, 0.41, 0.38, 0.03], "accuracy": [0.875, 0.871, 0.871, 0.869, 0.82]},
    index=NAMES,
)
CURVE = pandas.DataFrame(
    {"threshold": [0.5, 0.75, 1.0], "share": [1.0, 0.6, 0.0], "ms": [0.03, 0.2, 0.43]}
).assign(accuracy=[0.82, 0.87, 0.871])


def test_the_front_holds_what_nothing_beats():
    assert list(chooser.front(PIPELINES).index) == [NAMES[row] for row in (4, 3, 1, 0)]


def test_the_picture_of_a_cascade_says_what_its_threshold_gives():
    shown = chooser.cascade_picture(PIPELINES, CURVE, 0.75)
    words = "the baseline answers 60%, 87.0 % are right, 0.200 ms a text, a million in 3.3 minutes"
    assert f"Threshold 0.75: {words}" in shown


def test_tokens_are_coloured_by_their_shares():
    shown = tokens.coloured(["not", "##hing", "<b>"], [-0.9, 0.3, 0.0], "1 < 2")
    for part in (f"{plots.RED}dc", f"{plots.BLUE}6e", ">hing<", "&lt;b&gt;", "1 &lt; 2"):
        assert part in shown
    assert [share in shown for share in ("-0.90", "+0.30", "+0.00")] == [True] * 3
