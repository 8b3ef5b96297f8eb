"""Batches cover every text once, respect their limits and waste little padding."""

import math
import random

from conftest import TINY
from helpers.models import assets
from helpers.models.batching import batches, encode, pad, restore
from helpers.models.inspection import max_input_length

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

SHORT = TINY | {"max_position_embeddings": 40}
LENGTHS = [random.Random(1).randint(2, 60) for _ in range(200)]


@pytest.mark.parametrize(
    "limits", [{"batch_size": 16}, {"max_tokens": 256}, {"batch_size": 8, "max_tokens": 300}]
)
def test_every_text_once_within_the_limits(limits):
    groups = batches(LENGTHS, **limits)
    assert sorted(i for group in groups for i in group) == list(range(200))
    for group in groups:
        assert len(group) <= limits.get("batch_size", 200)
        assert len(group) * max(LENGTHS[i] for i in group) <= limits.get("max_tokens", 10**9)


def test_case_81_sorting_wastes_little_padding():
    """Padding to the longest of a sorted batch computes far fewer tokens than 128 each."""
    groups = batches(LENGTHS, batch_size=16)
    padded = sum(len(group) * max(LENGTHS[i] for i in group) for group in groups)
    assert sum(LENGTHS) <= padded < 1.15 * sum(LENGTHS)
    assert padded < 0.4 * 128 * len(LENGTHS)


def test_a_text_beyond_the_budget_gets_its_own_batch():
    assert batches([500, 3, 4], max_tokens=100) == [[1, 2], [0]]


def test_case_81_restore_gives_the_order_back():
    groups = batches(LENGTHS, batch_size=7)
    results = [torch.tensor([[LENGTHS[i], i] for i in group]) for group in groups]
    wanted = torch.tensor([[n, i] for i, n in enumerate(LENGTHS)])
    assert torch.equal(torch.stack(restore(results, groups)), wanted)


def test_no_texts_no_batches():
    assert batches([], batch_size=4) == []
    assert restore([], []) == []


@pytest.mark.parametrize("arguments", [{}, {"batch_size": 0}, {"max_tokens": -1}])
def test_limits_are_checked(arguments):
    with pytest.raises(ValueError, match="at least 1"):
        batches([3], **arguments)


def test_restore_refuses_a_mismatch():
    with pytest.raises(ValueError, match="zip"):
        restore([[1, 2, 3]], [[0, 1]])
    with pytest.raises(ValueError, match="zip"):
        restore([[1]], [[0], [1]])


def test_lengths_may_be_of_any_kind_of_sequence():
    for lengths in (iter([3, 1, 2]), np.array([3, 1, 2]), pd.Series([3, 1, 2], index=[5, 6, 7])):
        assert batches(lengths, batch_size=2) == [[1, 2], [0]]


@pytest.mark.parametrize("groups", [[[0, 5]], [[0, 0]], [[0, -1]]])
def test_restore_refuses_groups_that_lose_a_text(groups):
    with pytest.raises(ValueError, match="once"):
        restore([[1, 2]], groups)


@pytest.fixture(scope="module")
def tokenizer():
    return assets.tokenizer("minilm")


@pytest.mark.parametrize(
    "texts", [["a film", "an even longer one"], [("a", "b c"), ("d", "e")], np.array(["a", "b"])]
)
def test_encoded_texts_are_those_of_the_tokenizer(tokenizer, texts):
    encoded, lengths = encode(tokenizer, (text for text in texts))
    expected = [tokenizer(*row) if isinstance(row, tuple) else tokenizer(str(row)) for row in texts]
    rows = zip(*encoded.values(), strict=True)
    assert [dict(zip(encoded, row, strict=True)) for row in rows] == expected
    assert lengths == [len(row["input_ids"]) for row in expected]


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ("one text", "of type str: give a list"),
        (b"bytes", "of type bytes"),
        ({"text": 1}, "of type dict"),
        (pd.DataFrame({"text": ["a"]}), "one column of a table"),
        ([("a", "b", "c")], "strings or pairs of strings"),
    ],
)
def test_what_would_be_taken_for_other_texts_is_refused(tokenizer, texts, words):
    with pytest.raises(TypeError, match=words):
        encode(tokenizer, texts)


@pytest.mark.parametrize("bad", [None, float("nan"), ("a", "b"), "b\ud83d", b"bytes"])
def test_no_item_that_is_not_a_text_is_encoded(tokenizer, bad):
    with pytest.raises((TypeError, ValueError)):
        encode(tokenizer, ["good", bad])


def test_long_texts_are_cut_and_a_limit_without_room_is_refused(tokenizer):
    assert encode(tokenizer, ["word " * 300])[1] == [128]
    assert encode(tokenizer, ["word " * 300], 3)[1] == [3]
    for limit in (0, 1, 2, -1):
        with pytest.raises(ValueError, match="at least 3"):
            encode(tokenizer, ["word"], limit)


@pytest.mark.parametrize("tensors", ["pt", "np"])
def test_padding_is_on_the_right_with_a_mask(tensors):
    tokenizer = assets.tokenizer("minilm")
    tokenizer.padding_side, tokenizer.model_input_names = "left", ["input_ids"]
    batch = pad(tokenizer, encode(tokenizer, ["a", "a b c", "d"])[0], [1, 2], tensors)
    assert np.asarray(batch["attention_mask"]).tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert np.asarray(batch["input_ids"])[1, 3:].tolist() == [tokenizer.pad_token_id] * 2


@pytest.mark.parametrize(
    ("model", "most"),
    [
        (BertModel(BertConfig(**SHORT)), 40),
        (RobertaModel(RobertaConfig(**SHORT)), 38),
        (torch.nn.Linear(2, 2), math.inf),
    ],
)
def test_positions_are_what_the_model_reads(model, most):
    assert max_input_length(model) == most
    if most < math.inf:
        ids = torch.full((1, most), 5)
        model(input_ids=ids)
        with pytest.raises(Exception, match=r"index out of range|must match|size"):
            model(input_ids=torch.full((1, most + 1), 5))
