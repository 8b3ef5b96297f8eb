"""The stored adapter makes the classifier that its card describes; `train-teacher` remakes it."""

import json
import re

from helpers.core import metrics
from helpers.lessons import sentiment
from helpers.models import assets, catalogue, datasets
from helpers.tools import train

import pytest
import torch
from transformers import BertForSequenceClassification


@pytest.fixture(scope="module")
def teacher():
    return sentiment.teacher()


@pytest.mark.slow
def test_its_accuracy_is_what_the_card_says(teacher):
    test = sentiment.sentences("test")
    found = metrics.accuracy(test["label"], sentiment.logits(teacher, test["text"]).argmax(dim=1))
    assert found.n >= 2000
    assert found.value >= 0.875
    card = (sentiment.ADAPTER / "README.md").read_text(encoding="utf-8")
    stated = re.search(r"accuracy on the test snippets (\d+\.\d)%", card)
    # Another CPU may round a borderline sentence otherwise.
    assert abs(100 * found.value - float(stated[1])) <= 0.1


def test_it_is_a_plain_model_ready_to_use(teacher):
    assert type(teacher) is BertForSequenceClassification
    assert not teacher.training
    assert not [name for name, _ in teacher.named_modules() if "lora" in name]
    assert all(p.dtype == torch.float32 and p.requires_grad for p in teacher.parameters())
    assert teacher.config.id2label == {0: "negative", 1: "positive"}
    assert "sentiment adapter, SHA-256" in str(assets.provenance(teacher))


def test_the_adapter_is_small_and_knows_no_machine():
    files = {path.name: path for path in sentiment.ADAPTER.iterdir()}
    assert set(files) == {"README.md", "adapter_config.json", "adapter_model.safetensors"}
    assert sum(path.stat().st_size for path in files.values()) <= 3e6
    settings = json.loads(files["adapter_config.json"].read_text())
    minilm = catalogue.CATALOGUE["minilm"]
    assert settings["base_model_name_or_path"] == minilm.hub_id
    assert settings["revision"] == minilm.revision
    card, digest = files["README.md"].read_text(), assets.provenance(datasets.reviews()).digest
    for fact in (minilm.revision, digest, "train-teacher", "seed 0"):
        assert fact in card


def test_the_split_is_by_row():
    train, test = sentiment.sentences("train"), sentiment.sentences("test")
    assert (len(train), len(test)) == (8060, 2012)
    assert (test["id"] % 5 == 0).all()
    assert (train["id"] % 5 != 0).all()
    with pytest.raises(ValueError, match='take "train" or "test"'):
        sentiment.sentences("dev")


def test_soft_targets():
    targets = train.rating_targets([-4.0, 0.5, 3.0])
    assert torch.allclose(targets.sum(dim=1), torch.ones(3))
    assert targets[:, 1].tolist() == pytest.approx([0.0082, 0.6457, 0.9734], abs=1e-4)


def test_the_recipe_makes_what_the_loader_reads(tmp_path, monkeypatch):
    few = {split: sentiment.sentences(split).head(32) for split in ("train", "test")}
    monkeypatch.setattr(sentiment, "sentences", few.get)
    made = train.train_teacher(tmp_path, epochs=1)
    again = sentiment.logits(sentiment.teacher(tmp_path), few["test"]["text"])
    assert metrics.accuracy(few["test"]["label"], again.argmax(dim=1)) == made
    fresh = sentiment.logits(sentiment.untrained(), few["test"]["text"])
    assert not torch.allclose(fresh, again)
    assert f"{made.value:.1%}" in (tmp_path / "README.md").read_text()
