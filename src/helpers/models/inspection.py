"""Look through wrappers, ask a model what it takes, and get its logits."""

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence

from helpers.models import batching

import torch
from torch import nn


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside the wrappers of torch.compile, DataParallel (and its distributed kin), and peft."""
    wrapped = getattr(model, "_orig_mod", getattr(model, "module", None))
    if wrapped is not None:
        return unwrap(wrapped)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def accepted_inputs(model: nn.Module, encoding: Mapping) -> dict:
    """The entries of an encoding that the model's ``forward`` names: DistilBERT, for one, knows no segment ids.

    Raises ValueError if it names none.
    """
    inner = unwrap(model)
    names = inspect.signature(inner.forward).parameters
    accepted = {name: value for name, value in encoding.items() if name in names}
    if not accepted:
        raise ValueError(
            f"{type(inner).__name__}.forward names none of {', '.join(encoding)}: give the model inside it"
        )
    return accepted


def _logits(
    model: nn.Module, tokenizer, encoded: dict[str, list], rows: Sequence[int]
) -> torch.Tensor:
    """The model's logits (rows, labels) for some rows of an encoding, padded to the longest."""
    batch = batching.pad(tokenizer, encoded, rows).to(next(model.parameters()).device)
    logits = getattr(model(**accepted_inputs(model, batch)), "logits", None)
    if logits is None or logits.dim() != 2:
        raise ValueError(
            f"{type(model).__name__} gives no logits (texts, labels): this is for classifiers of whole texts"
        )
    return logits


def predict(model: nn.Module, tokenizer, texts: Iterable, max_tokens: int = 1024) -> torch.Tensor:
    """A classifier's logits in eval mode without gradients, float32 (texts, labels) on the CPU, in the given order.

    Texts (or pairs) are sorted by length into batches of at most ``max_tokens`` tokens with padding, cut at 128 tokens
    or at what the model can read. Raises ValueError for other models than classifiers of whole texts, and what
    `batching.encode` raises.
    """
    encoded, lengths = batching.encode(
        tokenizer, texts, min(batching.MAX_LENGTH, max_input_length(model))
    )
    groups, results = batching.batches(lengths, max_tokens=max_tokens), []
    before = {module: module.training for module in model.modules()}
    try:
        model.eval()
        with torch.inference_mode():
            for group in groups:
                results.append(_logits(model, tokenizer, encoded, group).float().cpu())
    finally:
        for module, training in before.items():
            module.training = training
    return torch.stack(batching.restore(results, groups))


def max_input_length(model) -> float:
    """The most tokens of a text that a model of transformers reads; infinity if it has no table of positions.

    RoBERTa and its kin count from the padding's number on: positions up to it are no token's.
    """
    named = (
        module for name, module in model.named_modules() if name.endswith("position_embeddings")
    )
    tables = [module for module in named if hasattr(module, "num_embeddings")]
    unused = (0 if table.padding_idx is None else table.padding_idx + 1 for table in tables)
    return min(
        (table.num_embeddings - less for table, less in zip(tables, unused, strict=True)),
        default=math.inf,
    )
