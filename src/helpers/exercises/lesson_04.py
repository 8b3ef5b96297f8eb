"""Checks for the exercises of notebook 04 (ONNX Runtime), and the model and the file that they are about."""

from collections.abc import Callable
from pathlib import Path

from helpers.exercises import exercise
from helpers.lessons import onnx_export, onnx_inference
from helpers.models import batching

import numpy as np
import onnx as onnx_package
import torch
from transformers import BertConfig, BertModel

_CONFIG = BertConfig(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=100,
    max_position_embeddings=64, initializer_range=0.5,
)  # fmt: skip
MOST_TEXTS, MOST_TOKENS = 32, 1024


def new_model() -> BertModel:
    """A small BERT with random weights, in eval mode: the model of exercises 1 and 2."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return BertModel(_CONFIG).eval()


def write_puzzle(folder: str | Path) -> Path:
    """Writes puzzle.onnx, the model's file as a colleague exported it.

    Reading on here gives it away.
    """
    path = Path(folder) / "puzzle.onnx"
    onnx_export.export(new_model(), path)
    file = onnx_package.load(path)
    names = {"attention_mask": "token_type_ids", "token_type_ids": "attention_mask"}
    for node in file.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    onnx_package.save(file, path)
    return path


def _difference(session, give: Callable) -> float:
    """The largest difference from the model on padded batches of two segments.

    `give` makes what the session gets.
    """
    worst = 0.0
    for batch, length in ((1, 12), (3, 40)):
        inputs = batching.two_segments(
            batch, length, _CONFIG.vocab_size, np.random.default_rng(batch)
        )
        with torch.no_grad():
            right = new_model()(
                **{name: torch.from_numpy(array) for name, array in inputs.items()}
            )[0].numpy()
        worst = max(worst, float(np.abs(onnx_inference.run(session, give(inputs)) - right).max()))
    return worst


@exercise
def check_04_1(answer: str | Path) -> str | None:
    """The path of a file of `new_model()` that takes batches of any size and length."""
    session = onnx_inference.session(answer)
    names = [entry.name for entry in session.get_inputs()]
    if sorted(names) != sorted(onnx_export.NAMES):
        return f"its inputs are {names}: it needs {', '.join(onnx_export.NAMES)}"
    for entry in session.get_inputs():
        if fixed := [size for size in entry.shape if isinstance(size, int)]:
            return f"its input {entry.name} has a fixed size of {fixed[0]}: name both axes in dynamic_shapes"
    if (difference := _difference(session, dict)) > onnx_export.TOLERANCE:
        return f"it is {difference:.2f} off the model on padded texts of two segments: is each input in place?"
    return None


@exercise
def check_04_2(answer: Callable, path: str | Path) -> str | None:
    """A function from the tokenizer's arrays, by name, to what puzzle.onnx has to be given, by name."""
    if (difference := _difference(onnx_inference.session(path), answer)) > onnx_export.TOLERANCE:
        return f"with it, the file still differs by {difference:.2f} from the model on padded texts of two segments"
    return None


@exercise
def check_04_3(answer: Callable) -> str | None:
    """A function from lengths to batches (lists of positions) of at most 32 texts and 1,024 tokens with padding."""
    rng = np.random.default_rng(4)
    for lengths in (rng.integers(3, 60, 500).tolist(), rng.integers(100, 513, 80).tolist()):
        groups = [list(group) for group in answer(list(lengths))]
        if sorted(position for group in groups for position in group) != list(range(len(lengths))):
            return "each text has to be in one batch, once"
        if (most := max(map(len, groups))) > MOST_TEXTS:
            return f"a batch has {most} texts"
        tokens = [len(group) * max(lengths[position] for position in group) for group in groups]
        if max(tokens) > MOST_TOKENS:
            return f"a batch has {max(tokens)} tokens with padding: its longest text counts for all of its texts"
        best = batching.batches(lengths, MOST_TEXTS, MOST_TOKENS)
        least = sum(len(group) * max(lengths[position] for position in group) for group in best)
        if sum(tokens) > 1.05 * least or len(groups) > 1.2 * len(best):
            return (
                f"{sum(tokens)} tokens in {len(groups)} batches, where {least} in {len(best)} would do: put texts of "
                "like length together, as many as fit"
            )
    return None
