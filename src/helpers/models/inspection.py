"""Ask a model what it is and takes: unwrap it, find int8 layers, get its logits."""

import contextlib
import inspect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from helpers.core import tensors
from helpers.models import batching

import torch
from torch import nn


@contextlib.contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Make random numbers on the CPU the same each time, and leave PyTorch's state as it was."""
    # torch.manual_seed would also reseed the accelerators.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a model in eval mode; afterwards each of its modules is in its own mode again."""
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside the wrappers of torch.compile, DataParallel and peft."""
    wrapped = getattr(model, "_orig_mod", getattr(model, "module", None))
    if wrapped is not None:
        return unwrap(wrapped)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def int8_modules(model: nn.Module) -> list[str]:
    """Return the names of the modules that hold int8 weights of torch.ao or torchao."""

    def holds_int8(module: nn.Module) -> bool:
        weight = type(getattr(module, "weight", None))
        return tensors.is_packed(module) or weight.__module__.startswith("torchao")

    return [name for name, module in model.named_modules() if holds_int8(module)]


def accepted_inputs(model: nn.Module, encoding: Mapping) -> dict:
    """Return the entries of an encoding that `forward` names: DistilBERT has no segment ids."""
    names = inspect.signature(unwrap(model).forward).parameters
    return {name: value for name, value in encoding.items() if name in names}


def max_input_length(model) -> float:
    """Return how many tokens of a text a model reads; infinity if it has no table of positions.

    RoBERTa and its kin count positions from the padding's number on; those up to it are unused.
    """
    longest = math.inf
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and hasattr(module, "num_embeddings"):
            padding = getattr(module, "padding_idx", None)  # an int8 table has none
            unused = 0 if padding is None else padding + 1
            longest = min(longest, module.num_embeddings - unused)
    return longest


def logits(model: nn.Module, tokenizer, encoded: dict, rows: Sequence[int]) -> torch.Tensor:
    """Return the logits (rows, labels) for some rows of an encoding, padded to the longest.

    Raises:
        ValueError: If the model is not a classifier of whole texts.
    """
    batch = batching.pad(tokenizer, encoded, rows).to(next(model.parameters()).device)
    found = getattr(model(**accepted_inputs(model, batch)), "logits", None)
    if found is None or found.dim() != 2:
        kind = type(model).__name__
        raise ValueError(f"{kind} gives no logits (texts, labels): it must classify whole texts")
    return found


def predict(model: nn.Module, tokenizer, texts: Iterable, max_tokens: int = 1024) -> torch.Tensor:
    """Return a classifier's logits in eval mode, float32 (texts, labels) on the CPU, in order.

    Args:
        model: A classifier of whole texts.
        tokenizer: Its tokenizer.
        texts: Texts or pairs, cut at 128 tokens or at what the model reads.
        max_tokens: Of a batch with padding; texts are sorted by length.
    """
    limit = min(batching.MAX_LENGTH, max_input_length(model))
    encoded, lengths = batching.encode(tokenizer, texts, limit)
    groups, results = batching.batches(lengths, max_tokens), []
    with eval_mode(model), torch.inference_mode():
        for group in groups:
            results.append(logits(model, tokenizer, encoded, group).float().cpu())
    return torch.stack(batching.restore(results, groups))
