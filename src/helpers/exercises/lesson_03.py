"""Checks for the exercises of notebook 03 (checkpoints), and the two files they are about."""

import re
from collections.abc import Mapping
from pathlib import Path

from helpers.exercises import exercise
from helpers.exercises.tiny_models import tiny_bert

import torch
from torch import nn

SEEDS = {1: 11, 2: 12}  # of the right model in each file


def save_as_from_gpus(state: Mapping[str, torch.Tensor], path: str | Path) -> None:
    """Write what a machine with two GPUs would: large tensors from cuda:1, others from cuda:0."""
    tag = lambda storage: f"cuda:{int(storage.nbytes() > 1_000_000)}"  # noqa: E731
    entry = (0, tag, lambda storage, location: None)
    torch.serialization._package_registry.insert(0, entry)
    torch.save(state, path)
    torch.serialization._package_registry.remove(entry)


def write_puzzles(folder: str | Path) -> list[Path]:
    """Write one.pth and two.pth into `folder`. Reading on here gives them away."""
    one, two = (tiny_bert(seed).state_dict() for seed in SEEDS.values())
    other = {name.replace("encoder.layer.", "encoder.blocks."): one[name] for name in one}
    old = {}
    for name, value in two.items():  # TensorFlow keeps a linear layer's matrix turned round
        linear = re.search(r"(dense|query|key|value)\.weight$", name)
        old[f"bert.{name}"] = value.T.contiguous() if linear else value
    paths = [Path(folder) / "one.pth", Path(folder) / "two.pth"]
    torch.save(other, paths[0])
    torch.save(old, paths[1])
    return paths


def _fault(answer: nn.Module, number: int, hint: str) -> str | None:
    if not isinstance(answer, nn.Module):
        return f"the answer is the loaded model, not a {type(answer).__name__}"
    right, got = tiny_bert(SEEDS[number]).state_dict(), answer.state_dict()
    if got.keys() != right.keys():
        return "it is another model: build it with tiny_models.tiny_bert"
    differ = [name for name in right if not torch.equal(right[name], got[name])]
    if differ:
        share = f"{len(differ)} of {len(right)} weights differ from the trained ones"
        return f"{share}, among them {differ[-1]}. {hint}"
    if answer.training:
        return "the weights are right, but the model is in training mode, so dropout is on"
    return None


@exercise
def check_03_1(answer: nn.Module) -> str | None:
    """Check the model in one.pth, whose layers have another name."""
    return _fault(answer, 1, "strict=False skips names that do not fit")


@exercise
def check_03_2(answer: nn.Module) -> str | None:
    """Check the model in two.pth, whose linear layers are stored the other way round."""
    return _fault(answer, 2, "Square matrices fit either way round: no error tells of them")
