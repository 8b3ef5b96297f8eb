"""Batches of texts with little padding: encode, sort by length, cut, put results in order."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

MAX_LENGTH = 128  # tokens at which the classifiers here cut a text
# What a batch may hold beside a model's inputs.
EXTRAS = {"special_tokens_mask", "offset_mapping", "overflow_to_sample_mapping", "length", "labels"}


def encode(
    tokenizer, texts: Iterable, max_length: int = MAX_LENGTH
) -> tuple[dict[str, list], list[int]]:
    """Return what a tokenizer gives for texts or pairs, unpadded, and each text's tokens.

    Args:
        tokenizer: Of transformers.
        texts: Strings, or pairs of them.
        max_length: Tokens at which they are cut.

    Raises:
        TypeError: For what is not a list of texts, whose letters or columns would be taken for
            texts, and for an item with more than two texts.
        ValueError: For a max_length without room for a word.
    """
    if isinstance(texts, str | bytes | Mapping) or hasattr(texts, "columns"):
        kind = type(texts).__name__
        raise TypeError(f"texts is of type {kind}: give a list of texts, or one column of a table")
    if max_length < 3:
        raise ValueError("max_length must be at least 3 ([CLS], one token, [SEP])")
    rows = [(text,) if isinstance(text, str) else text for text in texts]
    if rows and len(rows[0]) > 2:  # the tokenizer would take the third text for labels
        raise TypeError(f"the first text is {rows[0]!r}: texts must be strings or pairs of strings")
    options = {"return_attention_mask": True, "truncation": True, "max_length": max_length}
    encoded = dict(tokenizer(*map(list, zip(*rows, strict=True)), **options))
    return encoded, [len(ids) for ids in encoded["input_ids"]]


def pad(tokenizer, encoded: Mapping[str, Sequence], rows: Iterable[int], tensors: str = "pt"):
    """Return some rows of what `encode` gave as a BatchEncoding, padded on the right, with a mask.

    Args:
        tokenizer: The one that encoded them.
        encoded: What `encode` returned.
        rows: Positions of texts.
        tensors: "pt" or "np".
    """
    picked = {name: [column[row] for row in rows] for name, column in encoded.items()}
    options = {"padding_side": "right", "return_attention_mask": True}
    return tokenizer.pad(picked, return_tensors=tensors, **options)


def batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Group positions of texts into batches of similar length and so many tokens with padding.

    It is `fast_pipeline.batches` without ONNX Runtime. A longer text has a batch of its own.
    """
    order, groups = sorted(range(len(lengths)), key=lambda row: lengths[row]), []
    while order:
        count = max(1, max_tokens // lengths[order[-1]])
        groups.append(order[-count:])
        del order[-count:]
    return groups


def restore(results: Iterable[Iterable[Any]], groups: Sequence[Sequence[int]]) -> list[Any]:
    """Put the rows that batches gave back into the order of the texts; ValueError if some lack."""
    rows, order = itertools.chain(*results), itertools.chain(*groups)
    return [row for _, row in sorted(zip(order, rows, strict=True), key=lambda pair: pair[0])]


def two_segments(
    batch: int, length: int, vocabulary: int, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return random ids, mask and segment ids, int64 (batch, length), padded, of two segments.

    A row of one token has no room for either.
    """
    place, row = np.arange(length), np.arange(batch)[:, None]
    real = np.maximum(length - (length * (row + 1)) // (batch + 2), 1)
    mask = (place < real).astype(np.int64)
    ids = rng.integers(1, vocabulary, (batch, length)) * mask
    segments = mask * (place >= (real + 1) // 2)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
