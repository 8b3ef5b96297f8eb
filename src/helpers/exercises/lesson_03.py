"""Checks for the exercises of notebook 03 (checkpoints), and the three files they are about."""

import argparse
import re
from pathlib import Path

from helpers.exercises import exercise
from helpers.exercises.tiny_models import tiny_bert

import torch
from torch import nn
from transformers import BertModel


def write_puzzles(folder: str | Path) -> list[Path]:
    """Write one.pth, two.pth and three.pth into `folder`. Reading on here gives them away."""
    paths = [Path(folder) / f"{number}.pth" for number in ("one", "two", "three")]
    one, two, three = (_right(number).state_dict() for number in (1, 2, 3))
    torch.save({n.replace("encoder.", "encoder._orig_mod."): one[n] for n in one}, paths[0])
    options = argparse.Namespace(lr=2e-5, select="best")
    last = tiny_bert(20).state_dict()
    torch.save({"last": last, "best": two, "options": options}, paths[1])
    old = {}
    for name, value in three.items():
        name = "bert." + name.replace("LayerNorm.weight", "LayerNorm.gamma")
        old[name] = value.T.contiguous() if _is_linear(name) else value
    torch.save(old, paths[2])
    return paths


def _right(number: int) -> BertModel:
    return tiny_bert(10 + number)


def _is_linear(name: str) -> bool:
    """Whether a weight is a linear layer's matrix, which TensorFlow keeps the other way round."""
    return bool(re.search(r"(dense|query|key|value)\.weight$", name))


def _fault(answer: nn.Module, number: int) -> str | None:
    if not isinstance(answer, nn.Module):
        return f"the answer is the loaded model, not a {type(answer).__name__}"
    right, got = dict(_right(number).named_parameters()), dict(answer.named_parameters())
    if got.keys() != right.keys():
        return "it is another model: build it with tiny_models.tiny_bert"
    differ = [name for name in right if not torch.equal(right[name], got[name].float())]
    share = f"{len(differ)} of {len(right)} weights"
    if 4 * len(differ) > len(right) and number != 3:
        return f"{share} are not the trained ones; strict=False may have skipped them"
    if differ:
        return f"{share} differ from the trained ones, among them {differ[-1]}"
    if answer.training:
        return "the weights are right, but the model is in training mode, so dropout is on"
    ids = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        if not torch.equal(answer(ids)[0], _right(number)(ids)[0]):
            return "all weights agree, but the outputs do not: compare the buffers as well"
    return None


@exercise
def check_03_1(answer: nn.Module) -> str | None:
    """Check the model in one.pth, of which only a part was compiled."""
    return _fault(answer, 1)


@exercise
def check_03_2(answer: nn.Module) -> str | None:
    """Check the model in two.pth that its owner selected."""
    fault = _fault(answer, 2)
    if fault and isinstance(answer, BertModel):
        last = tiny_bert(20).pooler.dense.weight
        if torch.equal(answer.pooler.dense.weight, last):
            return "these are the weights of the last epoch: what do the owner's options say?"
    return fault


@exercise
def check_03_3(answer: nn.Module) -> str | None:
    """Check the model in three.pth, whose linear layers are stored the other way round."""
    fault = _fault(answer, 3)
    if fault and isinstance(answer, BertModel):
        right, got = _right(3).state_dict(), answer.state_dict()
        linear = [name for name in right if _is_linear(name)]
        square = [name for name in linear if right[name].shape[0] == right[name].shape[1]]
        if all(torch.equal(right[name].T, got[name]) for name in square):
            return f"{fault}. Square matrices fit either way round, so no error tells of them"
    return fault
