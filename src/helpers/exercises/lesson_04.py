"""Checks for the exercises of notebook 04 (ONNX Runtime)."""

from collections.abc import Callable
from pathlib import Path

from helpers.exercises import exercise
from helpers.exercises.tiny_models import new_model
from helpers.lessons import onnx_export, onnx_inference
from helpers.models import batching
from helpers.recipes.onnx_export import INPUTS

import numpy as np

MOST_TOKENS = 1024


@exercise
def check_04_1(answer: str | Path) -> str | None:
    """Check the path of a file of `new_model()` that takes batches of any size and length."""
    session = onnx_inference.session(answer)
    names = [entry.name for entry in session.get_inputs()]
    if sorted(names) != sorted(INPUTS):
        return f"its inputs are {names}: it needs {', '.join(INPUTS)}"
    for entry in session.get_inputs():
        fixed = [size for size in entry.shape if isinstance(size, int)]
        if fixed:
            return f"{entry.name} has a fixed size of {fixed[0]}: name both axes in dynamic_shapes"
    parity = onnx_export.parity(new_model(), session, batches=(1, 3), lengths=(12, 40))
    if not parity.ok:
        off = f"it is {parity.difference:.2f} off the model on padded pairs"
        return f"{off}: is each input in place?"
    return None


@exercise
def check_04_2(answer: Callable) -> str | None:
    """Check a function from lengths to batches of at most 1,024 tokens with padding."""
    rng = np.random.default_rng(4)
    for lengths in (rng.integers(3, 60, 500).tolist(), rng.integers(100, 513, 80).tolist()):
        groups = [list(group) for group in answer(list(lengths))]
        if sorted(position for group in groups for position in group) != list(range(len(lengths))):
            return "each text has to be in one batch, once"
        tokens = _padded(groups, lengths)
        if max(tokens) > MOST_TOKENS:
            return f"a batch has {max(tokens)} tokens with padding: its longest text counts for all"
        best = batching.batches(lengths, MOST_TOKENS)
        least = sum(_padded(best, lengths))
        if sum(tokens) > 1.05 * least or len(groups) > 1.2 * len(best):
            found = f"{sum(tokens)} tokens in {len(groups)} batches, where {least} in {len(best)}"
            return f"{found} would do: put texts of like length together, as many as fit"
    return None


def _padded(groups: list[list[int]], lengths: list[int]) -> list[int]:
    """Return how many tokens each batch has with padding."""
    return [len(group) * max(lengths[position] for position in group) for group in groups]
