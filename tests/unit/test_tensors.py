"""Tensors are found, counted and compared wherever they are."""

from types import SimpleNamespace

from helpers.core import tensors

import pytest
import torch
from torch import nn
from transformers import BatchEncoding


def names(value):
    return [found for found, _, _ in tensors.walk(value)]


def test_the_walk_of_a_module_says_who_registered_a_tensor():
    module = nn.Sequential(nn.Linear(2, 2, bias=False))
    module.register_buffer("mean", torch.zeros(2))
    module.register_buffer("steps", torch.zeros(2), persistent=False)
    module[0].masks = [torch.ones(1), module[0].weight]
    module.loose = [nn.Linear(1, 1, bias=False)]
    assert [(name, kind) for name, kind, _ in tensors.walk(module)] == [
        ("mean", "buffer"),
        ("steps", "non-persistent buffer"),
        ("0.weight", "parameter"),
        ("0.masks[0]", "plain attribute"),
        ("loose[0].weight", "plain attribute"),
    ]
    assert next(tensors.walk(module, "model"))[0] == "model.mean"


def test_tied_parameters_have_each_of_their_names():
    module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    module[1].weight = module[0].weight
    assert names(module) == ["0.weight", "1.weight"]


def test_the_walk_of_containers_ends_and_yields_shared_tensors_once():
    shared = torch.ones(1)
    held = {"a": [shared], "b": (BatchEncoding({"ids": torch.ones(1)}), {shared}), "c": "text"}
    held["d"] = SimpleNamespace(x={"deep": torch.ones(1)}, back=held)
    assert names(held) == ["a[0]", "b[0]['ids']", "d.x['deep']"]
    assert names(shared) == [""]


def test_bytes_are_those_of_the_data():
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert tensors.nbytes(torch.ones(3, 4, dtype=torch.int8, device="meta")) == 12
    assert tensors.nbytes(nested) == 5 * 4 + 3 * 8  # values and offsets


@pytest.mark.parametrize("size", [0, -4, True, float("nan"), float("inf"), "8", None])
def test_sizes_that_no_memory_has(size):
    with pytest.raises(ValueError, match="GiB above 0"):
        tensors.gib_to_bytes(size)
    assert tensors.format_bytes(tensors.gib_to_bytes(1.5)) == "1.50 GiB"
