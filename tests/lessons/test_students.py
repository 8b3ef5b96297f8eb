"""`train-student` makes students that the loader reads, and learns from no test snippet."""

import json
import re

from helpers.core import metrics
from helpers.lessons import distillation, sentiment
from helpers.models import assets
from helpers.tools import train

import pytest
import torch


def test_the_texts_to_learn_from_hold_no_test_snippet_and_no_made_up_label():
    examples, test = sentiment.transfer_texts(), sentiment.sentences("test")
    assert examples["id"].is_unique
    labelled = examples[examples["label"] != distillation.UNLABELLED]
    assert labelled["text"].tolist() == sentiment.sentences("train")["text"].tolist()
    assert not set(test["text"]) & (set(examples["text"]) - set(labelled["text"]))
    assert examples.equals(sentiment.transfer_texts())


@pytest.mark.slow
def test_the_recipe_makes_what_the_loader_reads_from_the_same_teacher(tmp_path, monkeypatch):
    test = sentiment.sentences("test").sample(32, random_state=0)
    sentences = {"test": test, "train": sentiment.sentences("train")}
    monkeypatch.setattr(sentiment, "sentences", sentences.get)
    few = sentiment.transfer_texts().sample(40, random_state=0)
    record = train.train_student("two-layers", tmp_path, few)
    assert record["texts"] == 40
    made = sentiment.logits(sentiment.student("two-layers", tmp_path), few["text"])
    untrained = sentiment.logits(sentiment.unfinished_student("two-layers"), few["text"])
    assert not torch.allclose(made, untrained, atol=1e-3)
    monkeypatch.setattr(sentiment, "adapter_digest", lambda adapter=None: "another")
    with pytest.raises(ValueError, match="another teacher"):
        sentiment.student("two-layers", tmp_path)


@pytest.mark.slow
def test_the_stored_students_do_what_their_records_say():
    test, card = sentiment.sentences("test"), (sentiment.ADAPTER / "README.md").read_text()
    base = float(re.search(r"accuracy on the test snippets (\d+\.\d)%", card)[1]) / 100
    for (name, layers), share in zip(sentiment.LAYERS.items(), (0.99, 0.95), strict=True):
        record = json.loads((sentiment.STUDENTS / name / "record.json").read_text())
        student = sentiment.student(name)
        says = sentiment.logits(student, test["text"]).argmax(dim=1)
        found = metrics.accuracy(test["label"], says)
        # Other CPUs may round otherwise.
        assert abs(100 * found.value - float(record["accuracy"][:4])) <= 0.1
        assert found.value >= share * base
        assert record["layers"] == str(layers)
        assert record["command"] == f"python -m helpers train-student {name}"
        assert student.config.num_hidden_layers == len(layers)
        assert f"the student {name!r}" in str(assets.provenance(student))


def test_the_stored_logits_are_the_teachers_for_all_texts():
    """Nothing is computed again when a student is trained: the file has every text's logits."""
    examples = sentiment.transfer_texts()
    ids, texts = examples["id"].tolist(), examples["text"].tolist()
    before = sentiment.TEACHER_LOGITS.read_bytes()
    teacher, tokenizer = sentiment.teacher(), assets.tokenizer("minilm")
    stored = distillation.teacher_logits(teacher, tokenizer, ids, texts, sentiment.TEACHER_LOGITS)
    assert sentiment.TEACHER_LOGITS.read_bytes() == before
    picked = examples.sample(64, random_state=1).index.tolist()
    assert torch.allclose(
        stored[picked], sentiment.logits(teacher, [texts[row] for row in picked]), atol=1e-3
    )
    assert (
        sum(path.stat().st_size for path in sentiment.STUDENTS.rglob("*") if path.is_file()) <= 5e6
    )
