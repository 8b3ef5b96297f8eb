"""Batches of texts with little padding.

Encode, sort by length, cut by count or token budget, put results in order.

Used by every notebook that runs more than a handful of sentences (00, 01, 04 to 08).
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

MAX_LENGTH = 128  # tokens at which the classifiers here cut a text


def encode(
    tokenizer, texts: Iterable, max_length: int = MAX_LENGTH
) -> tuple[dict[str, list], list[int]]:
    """Return what a tokenizer gives for texts or pairs, unpadded, and each text's tokens.

    texts: strings, or tuples of two. They are cut at max_length tokens. Raises TypeError for a
    single text, a table or a mapping, whose letters or names would be taken for texts, and for what
    is no text; ValueError for none at all, for pairs beside single texts, for half a character (a
    lone surrogate), and for a max_length with no room for a word.
    """
    if isinstance(texts, str | bytes | Mapping) or hasattr(texts, "columns"):
        raise TypeError(
            f"texts is of type {type(texts).__name__}: give a list of texts, or one column of "
            "a table"
        )
    if operator.index(max_length) < 3:
        raise ValueError(f"max_length={max_length} has no room for a word between [CLS] and [SEP]")
    rows = [(text,) if isinstance(text, str) else text for text in texts]
    if not rows:
        raise ValueError("there are no texts")
    for number, row in enumerate(rows):
        if (
            not isinstance(row, tuple | list)
            or len(row) > 2
            or not all(isinstance(text, str) for text in row)
        ):
            raise TypeError(
                f"text {number} is no text (and no pair of texts) but {row!r}: leave it out"
            )
        if len(row) != len(rows[0]):
            raise ValueError(f"text {number} is {row!r}: texts and pairs of texts cannot be mixed")
        try:
            "".join(row).encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"text {number} holds half of a character: read its file as UTF-8 ({error})"
            ) from error
    names = {"return_attention_mask": True, "truncation": True, "max_length": max_length}
    encoded = dict(tokenizer(*map(list, zip(*rows, strict=True)), **names))
    return encoded, [len(ids) for ids in encoded["input_ids"]]


def pad(tokenizer, encoded: Mapping[str, Sequence], rows: Iterable[int], tensors: str = "pt"):
    """Return some rows of what `encode` gave as a BatchEncoding, padded on the right.

    tensors: "pt" or "np". The mask is 0 at the padding, whatever names the tokenizer itself thinks
    of.
    """
    picked = {name: [column[row] for row in rows] for name, column in encoded.items()}
    return tokenizer.pad(
        picked, padding_side="right", return_attention_mask=True, return_tensors=tensors
    )


def batches(
    lengths: Sequence[int], batch_size: int | None = None, max_tokens: int | None = None
) -> list[list[int]]:
    """Group positions of texts into batches of similar length, shortest first.

    lengths: tokens of each text, n whole numbers of at least 1. batch_size: most texts in a batch.
    max_tokens: most tokens in a batch *after padding* (texts x longest of them); a single text
    longer than that gets a batch of its own. At least one of the two limits must be given; with
    both, both hold.

    Returns lists of positions that together hold each of 0..n-1 once. Raises ValueError for a limit
    below 1, for no limit at all, and for a length below 1, TypeError for what is no whole number.
    """
    lengths = [operator.index(length) for length in lengths]
    limits = {"batch_size": batch_size, "max_tokens": max_tokens}
    if all(value is None for value in limits.values()):
        raise ValueError(
            "give batch_size, max_tokens or both: without a limit all texts would land in one batch"
        )
    for name, value in limits.items():
        if value is not None and operator.index(value) < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    if any(length < 1 for length in lengths):
        raise ValueError(
            "a text of length 0 has no tokens: count the special tokens ([CLS], [SEP]) too"
        )
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

    results: for each batch its rows, in the batch's order (a tensor of shape (texts, ...) will do).
    groups: what `batches` returned. Returns a list with one row per text. Raises ValueError when
    the numbers of batches or of rows do not match, since a silent shift would give every text
    somebody else's result.
    """
    rows: list[Any] = [None] * sum(map(len, groups))
    if sorted(position for group in groups for position in group) != list(range(len(rows))):
        raise ValueError(
            "the groups do not hold each text's position once: give what batches() returned"
        )
    for chunk, group in zip(results, groups, strict=True):
        for row, position in zip(chunk, group, strict=True):
            rows[position] = row
    return rows


def two_segments(
    batch: int, length: int, vocabulary: int, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Random ids, mask and segment ids, int64 (batch, length).

    Each row is padded, each has two segments.

    A row of one token has no room for either.
    """
    place, row = np.arange(length), np.arange(batch)[:, None]
    real = np.maximum(length - (length * (row + 1)) // (batch + 2), 1)
    mask = (place < real).astype(np.int64)
    ids = rng.integers(1, vocabulary, (batch, length)) * mask
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "token_type_ids": mask * (place >= (real + 1) // 2),
    }
