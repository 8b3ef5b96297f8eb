"""`train-student` makes students that the loader reads, interrupted or not, and learns from no test snippet."""

from helpers import __main__ as command_line
from helpers import distillation, recipes, sentiment

import pytest
import torch


def test_the_texts_to_learn_from_hold_no_test_snippet_and_no_made_up_label():
    examples, test = recipes.transfer_texts(), sentiment.sentences("test")
    assert examples["id"].is_unique
    labelled = examples[examples["label"] != distillation.UNLABELLED]
    assert labelled["text"].tolist() == sentiment.sentences("train")["text"].tolist()
    assert not set(test["text"]) & set(examples["text"]) - set(labelled["text"])
    assert examples.equals(recipes.transfer_texts())


@pytest.fixture
def few(tmp_path, monkeypatch):
    """Forty texts to learn from and thirty-two to test on; what is kept between runs lies in a folder of its own."""
    monkeypatch.setattr(recipes.assets, "root", lambda: tmp_path / "kept")
    test = sentiment.sentences("test").sample(32, random_state=0)
    sentences = {"test": test, "train": sentiment.sentences("train")}
    monkeypatch.setattr(sentiment, "sentences", sentences.get)
    monkeypatch.setitem(sentiment.PLANS, "one-layer", sentiment.PLANS["one-layer"] | {"epochs": 2})
    return recipes.transfer_texts().sample(40, random_state=0)


def answers(folder, few):
    return sentiment.logits(sentiment.student("one-layer", folder), few["text"])


def test_the_recipe_makes_what_the_loader_reads(few, tmp_path):
    record = recipes.train_student("one-layer", tmp_path / "whole", few, quiet=True)
    assert record["texts"] == 40
    assert not list((tmp_path / "kept").rglob("*.pt"))
    untrained = sentiment.logits(sentiment.unfinished_student("one-layer"), few["text"])
    assert not torch.allclose(answers(tmp_path / "whole", few), untrained, atol=1e-3)


def test_an_interrupted_training_goes_on(few, tmp_path, monkeypatch):
    """Stopped in its second epoch and run again, the recipe makes the same student as without the stop."""
    recipes.train_student("one-layer", tmp_path / "whole", few, quiet=True)
    train = distillation.train

    def stop(step, loss):
        if step == 3:  # of 4
            raise KeyboardInterrupt

    monkeypatch.setattr(distillation, "train", lambda *args, **options: train(*args, **options, after_step=stop))
    with pytest.raises(KeyboardInterrupt):
        recipes.train_student("one-layer", tmp_path / "stopped", few, quiet=True)
    assert not (tmp_path / "stopped" / "one-layer").exists()
    monkeypatch.setattr(distillation, "train", train)
    recipes.train_student("one-layer", tmp_path / "stopped", few, quiet=True)
    assert torch.equal(answers(tmp_path / "whole", few), answers(tmp_path / "stopped", few))


def test_there_is_no_student_without_a_plan(capsys):
    assert command_line.main(["train-student", "no-layer"]) == 1
    assert "there are three-layers, one-layer" in capsys.readouterr().err
