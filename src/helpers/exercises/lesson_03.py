"""Checks for the exercises of notebook 03 (checkpoints), and the three broken files that they are about."""

import argparse
import re
from pathlib import Path

from helpers.exercises import exercise

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, BertModel

_CONFIG = BertConfig(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=100,
    max_position_embeddings=64,
)  # fmt: skip


def new_model(seed: int = 0) -> BertModel:
    """A small BERT with random weights, in eval mode: the model that all three files belong to."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return BertModel(_CONFIG).eval()


def new_classifier() -> BertForSequenceClassification:
    """The same BERT with a head for two labels, all of it random."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return BertForSequenceClassification(_CONFIG).eval()


def write_puzzles(folder: str | Path) -> list[Path]:
    """Writes one.pth, two.pth and three.pth into `folder` and returns their paths. Reading on here gives them away."""
    paths = [Path(folder) / f"{number}.pth" for number in ("one", "two", "three")]
    partly = {
        name.replace("encoder.", "encoder._orig_mod."): value
        for name, value in _right(1).state_dict().items()
    }
    torch.save(partly, paths[0])
    last, best = new_model(20).state_dict(), _right(2).state_dict()
    torch.save(
        {"last": last, "best": best, "options": argparse.Namespace(lr=2e-5, select="best")},
        paths[1],
    )
    turned = {
        name: value.T.contiguous() if _turned(name) else value
        for name, value in _right(3).state_dict().items()
    }
    torch.save(
        {
            "bert." + name.replace("LayerNorm.weight", "LayerNorm.gamma"): t
            for name, t in turned.items()
        },
        paths[2],
    )
    return paths


def _right(number: int) -> BertModel:
    return new_model(10 + number)


def _turned(name: str) -> bool:
    """TensorFlow keeps the weights of a linear layer the other way round."""
    return bool(re.search(r"(dense|query|key|value)\.weight$", name))


def _fault(answer: nn.Module, number: int) -> str | None:
    if not isinstance(answer, nn.Module):
        return f"the answer is the loaded model, not a {type(answer).__name__}"
    right, names = _right(number), dict(answer.named_parameters())
    if names.keys() != dict(right.named_parameters()).keys():
        return "it is another model: build it with lesson_03.new_model"
    differ = [
        name
        for name, value in right.named_parameters()
        if not torch.equal(value, names[name].float())
    ]
    if 4 * len(differ) > len(names) and number != 3:
        return f"{len(differ)} of {len(names)} weights are not the trained ones; strict=False may have skipped them"
    if differ:
        return f"{len(differ)} of {len(names)} weights differ from the trained ones, among them {differ[-1]}"
    if answer.training:
        return "the weights are right, but the model is in training mode, so dropout is on"
    ids = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        if not torch.equal(answer(ids)[0], right(ids)[0]):
            return "all weights agree, but the outputs do not: compare the buffers as well"
    return None


@exercise
def check_03_1(answer: nn.Module) -> str | None:
    """The model in one.pth, of which only a part was compiled."""
    return _fault(answer, 1)


@exercise
def check_03_2(answer: nn.Module) -> str | None:
    """The model in two.pth that its owner selected."""
    fault, last = _fault(answer, 2), new_model(20)
    if (
        fault
        and isinstance(answer, BertModel)
        and torch.equal(answer.pooler.dense.weight, last.pooler.dense.weight)
    ):
        return "these are the weights of the last epoch: what do the owner's options say?"
    return fault


@exercise
def check_03_3(answer: nn.Module) -> str | None:
    """The model in three.pth, whose linear layers are stored the other way round."""
    fault = _fault(answer, 3)
    if fault and isinstance(answer, BertModel):
        right, got = _right(3).state_dict(), answer.state_dict()
        square = [
            name for name in right if _turned(name) and right[name].shape[0] == right[name].shape[1]
        ]
        if all(torch.equal(right[name].T, got[name]) for name in square):
            return f"{fault}. Square matrices fit either way round, so no error tells of them"
    return fault
