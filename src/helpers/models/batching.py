"""Batches of texts with little padding: encode, sort by length, cut, put results in order."""

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


def batches(
    lengths: Iterable[int], batch_size: int | None = None, max_tokens: int | None = None
) -> list[list[int]]:
    """Group positions of texts into batches of similar length, shortest first.

    Args:
        lengths: Tokens of each text, special tokens included.
        batch_size: Most texts in a batch.
        max_tokens: Most tokens in a batch *after padding* (texts x longest of them); a text longer
            than that gets a batch of its own.

    Returns:
        Lists of positions that together hold each of 0..n-1 once.

    Raises:
        ValueError: For a limit below 1, or none at all.
    """
    limits = [limit for limit in (batch_size, max_tokens) if limit is not None]
    if not limits or min(limits) < 1:
        raise ValueError("give batch_size, max_tokens or both, each at least 1")
    lengths = list(lengths)
    groups: list[list[int]] = []
    for position in sorted(range(len(lengths)), key=lengths.__getitem__):
        # Ascending order makes the newest text the longest, so it alone decides the padded size.
        room = groups and (batch_size is None or len(groups[-1]) < batch_size)
        if room and (max_tokens is None or (len(groups[-1]) + 1) * lengths[position] <= max_tokens):
            groups[-1].append(position)
        else:
            groups.append([position])
    return groups


def restore(results: Iterable[Iterable[Any]], groups: Sequence[Sequence[int]]) -> list[Any]:
    """Put the rows that batches gave back into the order of the texts.

    Args:
        results: For each batch its rows, in the batch's order (a tensor (texts, ...) will do).
        groups: What `batches` returned.

    Raises:
        ValueError: When the numbers of batches or of rows do not match, since a silent shift would
            give every text somebody else's result.
    """
    rows: list[Any] = [None] * sum(map(len, groups))
    if sorted(position for group in groups for position in group) != list(range(len(rows))):
        raise ValueError("groups must hold each text's position once: give what batches() returned")
    for chunk, group in zip(results, groups, strict=True):
        for row, position in zip(chunk, group, strict=True):
            rows[position] = row
    return rows


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
