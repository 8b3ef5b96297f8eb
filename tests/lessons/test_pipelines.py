"""The pipelines of notebook 08: every way gives the same logits."""

import itertools

from helpers.lessons import pipelines
from helpers.recipes import fast_pipeline, onnx_export

import numpy as np
import pytest
from transformers import BertForSequenceClassification

TEXTS = ["good", "a very good film", "", "bad bad bad bad film", "a film"] * 5


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer):
    return tiny_tokenizer("a", "very", "good", "bad", "film")


@pytest.fixture(scope="module")
def model(tiny_model):
    return tiny_model(BertForSequenceClassification, num_labels=3, max_position_embeddings=128)


@pytest.fixture(scope="module")
def exported(model, tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("pipelines") / "model.onnx"
    return onnx_export.export(model, path, tokenizer)


@pytest.mark.parametrize("way", ["one by one", "batches", "workers"])
def test_all_ways_give_the_logits_of_the_model_in_order(way, model, tokenizer, exported):
    wanted = pipelines.one_by_one(model, tokenizer, TEXTS)
    padded = pipelines.one_by_one(model, tokenizer, TEXTS, padding="max_length")
    np.testing.assert_allclose(padded, wanted, atol=1e-5)
    answer = pipelines.open_file(exported, way, tokenizer, cpus=2)
    np.testing.assert_allclose(answer(TEXTS), wanted, atol=1e-4)


def test_a_file_without_a_mask_is_refused(tokenizer):
    """It would read the padding as text."""

    class Session:
        def get_inputs(self):
            return [type("Entry", (), {"name": "input_ids"})]

    with pytest.raises(ValueError, match="read padding as text"):
        fast_pipeline.classify(TEXTS, Session(), tokenizer, workers=1)


def test_the_baseline_is_as_often_right_where_it_is_sure_as_was_asked_for():
    """On texts held out of its training: half of these cannot be told apart."""
    known = [f"good film {n}" for n in range(20)] + [f"bad film {n}" for n in range(20)]
    labels = [1] * 20 + [0] * 20
    texts, coin = known + ["a film"] * 40, [0, 1] * 20
    first, threshold = fast_pipeline.train_baseline(texts, labels + coin, 0.95)
    sure = first.predict_proba(["good film", "bad film", "a film"]).max(1) >= threshold
    assert sure.tolist() == [True, True, False]
    assert fast_pipeline.train_baseline(["a film"] * 40, coin, 0.95)[1] == np.inf
    rare = [0] * 95 + [1] * 5  # whoever says 0 is right on 95 %, and never finds a 1
    assert fast_pipeline.train_baseline(["a film"] * 100, rare, 0.9)[1] == np.inf
    with pytest.raises(ValueError, match="number the labels from 0"):  # else columns are misread
        fast_pipeline.train_baseline(known, [1, 2] * 20)


def test_a_cascade_asks_only_about_what_the_baseline_is_not_sure_of():
    asked = []

    class Baseline:
        def predict_log_proba(self, texts):
            return np.log([[0.1, 0.9] if "good" in text else [0.5, 0.5] for text in texts])

    def rest(texts):
        asked.extend(texts)
        return np.array([[3.0, 1.0]] * len(texts))

    texts = ["bad", "good", "worse", "a good film"]
    logits = fast_pipeline.cascade(texts, Baseline(), 0.9 - 1e-9, rest)
    assert logits.argmax(1).tolist() == [0, 1, 0, 1]
    assert asked == ["bad", "worse"]
    fast_pipeline.cascade(["good"], Baseline(), 0.9 - 1e-9, None)  # nobody is asked


def test_each_step_changes_one_thing():
    """A factor belongs to one change: what answers, or how the texts reach it."""
    steps = list(pipelines.STEPS.values())
    for before, after in itertools.pairwise(steps):
        assert before != after
        assert before[0] == after[0] or before[1] == after[1]
