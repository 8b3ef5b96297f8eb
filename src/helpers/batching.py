"""Batches of texts with little padding: sort by length, cut by count or by token budget, put results back in order.

Used by every notebook that runs more than a handful of sentences (00, 01, 04 to 08).
"""

import operator
from collections.abc import Iterable, Sequence
from typing import Any


def batches(lengths: Sequence[int], batch_size: int | None = None, max_tokens: int | None = None) -> list[list[int]]:
    """Group positions of texts into batches of similar length, shortest first.

    lengths: tokens of each text, n whole numbers of at least 1. batch_size: most texts in a batch. max_tokens: most
    tokens in a batch *after padding* (texts x longest of them); a single text longer than that gets a batch of its own.
    At least one of the two limits must be given; with both, both hold.

    Returns lists of positions that together hold each of 0..n-1 once. Raises ValueError for a limit below 1, for no
    limit at all, and for a length below 1, TypeError for what is no whole number.
    """
    lengths = [operator.index(length) for length in lengths]
    limits = {"batch_size": batch_size, "max_tokens": max_tokens}
    if all(value is None for value in limits.values()):
        raise ValueError("give batch_size, max_tokens or both: without a limit all texts would land in one batch")
    for name, value in limits.items():
        if value is not None and operator.index(value) < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    if any(length < 1 for length in lengths):
        raise ValueError("a text of length 0 has no tokens: count the special tokens too ([CLS] and [SEP] make 2)")
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

    results: for each batch its rows, in the batch's order (a tensor of shape (texts, ...) will do). groups: what
    `batches` returned. Returns a list with one row per text. Raises ValueError when the numbers of batches or of rows
    do not match, since a silent shift would give every text somebody else's result.
    """
    rows: list[Any] = [None] * sum(map(len, groups))
    if sorted(position for group in groups for position in group) != list(range(len(rows))):
        raise ValueError("the groups do not hold each text's position once: give what batches() returned")
    for chunk, group in zip(results, groups, strict=True):
        for row, position in zip(chunk, group, strict=True):
            rows[position] = row
    return rows
