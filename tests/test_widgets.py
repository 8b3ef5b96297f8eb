"""helpers.widgets: the memory explorer's numbers are predictions, it says which are interpolated, and it is quick."""

from helpers import memory, widgets

import pytest


def choice(explorer):
    return {control.description: control for control in explorer.children[:-1]}


def test_every_choice_was_predicted_ahead_and_the_file_is_small():
    for model in widgets.MODELS:
        for mode in widgets.MODES:
            for dtype in widgets.DTYPES:
                for lever in widgets.LEVERS:
                    assert widgets.estimate(model, mode, dtype, lever, 3, 40).total > memory.CUDA_CONTEXT
    assert widgets.GRID.stat().st_size <= 100_000


def test_at_its_points_the_estimate_is_the_prediction():
    """Fails if the file is older than the predictions: then run `python tests/make_memory_grid.py`."""
    for batch, length in widgets.POINTS:
        chosen = ("minilm", "training, AdamW", "mixed precision", "checkpointing")
        predicted = memory.predict_peak("minilm", batch, length, device="cuda", **widgets.options(*chosen))
        assert widgets.estimate(*chosen, batch, length).terms == predicted.terms


@pytest.mark.parametrize(
    ("chosen", "batch", "length"),
    [
        (("minilm", "inference", "float32", "none"), 8, 200),
        (("minilm", "training, AdamW", "float32", "none"), 4, 72),
        (("minilm", "training, SGD", "bfloat16 weights", "none"), 32, 304),
        (("minilm", "training, AdamW", "float32", "LoRA and checkpointing"), 16, 448),
        (("minilm", "training, AdamW", "mixed precision", "half of the layers frozen"), 8, 512),
        (("minilm", "training, AdamW", "float32", "only the head trained"), 2, 104),
    ],
    ids=str,
)
def test_in_between_it_stays_close_to_the_prediction(chosen, batch, length):
    predicted = memory.predict_peak("minilm", batch, length, device="cuda", **widgets.options(*chosen))
    assert widgets.estimate(*chosen, batch, length).total == pytest.approx(predicted.total, rel=widgets.CLOSE)


def test_case_18_bert_large_is_trained_on_12_gib():
    assert widgets.estimate("bert-large", "training, AdamW", "float32", "none", 4, 512).verdict(12) == "fits"


def test_moving_a_control_changes_number_and_picture():
    explorer = widgets.memory_explorer()
    controls, out = choice(explorer), explorer.children[-1]
    for name, value in {"batch": 4, "length": 128, "model": "bert-large", "mode": "inference"}.items():
        before = out.value
        controls[name].value = value
        old, new = (text.split('alt="')[0] for text in (before, out.value))
        assert old != new
    assert controls["lever"].disabled
    assert "bert-large, 4 texts of 128 tokens (interpolated" in out.value
    assert "80 GiB: fits" in out.value


def test_it_says_which_numbers_are_exact():
    explorer = widgets.memory_explorer()
    controls, out = choice(explorer), explorer.children[-1]
    controls["batch"].value, controls["length"].value = 64, 256
    assert "predicted for exactly this choice" in out.value
    controls["mode"].value = "training, SGD"
    assert "interpolated" in out.value
