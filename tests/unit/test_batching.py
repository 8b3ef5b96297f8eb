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


@pytest.mark.parametrize("most", [256, 1024, 10**6])
def test_case_81_every_text_once_within_the_limit_and_with_little_padding(most):
    groups = batches(LENGTHS, most)
    assert sorted(i for group in groups for i in group) == list(range(200))
    padded = [len(group) * max(LENGTHS[i] for i in group) for group in groups]
    assert max(padded) <= most
    assert sum(LENGTHS) <= sum(padded)
    assert sum(padded) < 1.15 * sum(LENGTHS) or most > 2000


def test_a_text_beyond_the_budget_gets_its_own_batch_and_no_texts_none():
    assert batches([500, 3, 4], 100) == [[0], [1, 2]]
    assert batches([], 100) == restore([], []) == []


def test_case_81_restore_gives_the_order_back_or_refuses():
    groups = batches(LENGTHS, 300)
    results = [torch.tensor([[LENGTHS[i], i] for i in group]) for group in groups]
    wanted = torch.tensor([[n, i] for i, n in enumerate(LENGTHS)])
    assert torch.equal(torch.stack(restore(results, groups)), wanted)
    with pytest.raises(ValueError, match="zip"):
        restore([[1, 2, 3]], [[0, 1]])


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
