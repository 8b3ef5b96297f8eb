"""Embed a list of texts, or a stream of any length, and say what it took (notebook 07)."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from helpers.core.progress import progress_bar
from helpers.lessons import casing
from helpers.models import batching, inspection
from helpers.recipes.embed_corpus import mean_pool

import numpy as np
import torch
from torch import nn

CHUNK = 2048  # texts that are tokenised and sorted together: memory grows with this only
UNCUT = 10**9  # tokens


@dataclass
class EmbeddingReport:
    """What an embedding took."""

    texts: int = 0
    tokens: int = 0  # computed, [CLS] and [SEP] included
    padding: int = 0  # positions computed for nothing
    cut_texts: int = 0  # longer than the model reads
    cut_tokens: int = 0
    dtype: str = ""


class Embedded(NamedTuple):
    """Vectors, float32 (texts, width), in the order of the texts, and what they took."""

    vectors: np.ndarray
    report: EmbeddingReport


def _body(model: nn.Module) -> nn.Module:
    """Return the model without wrappers and head, and say once where it computes."""
    inner = inspection.unwrap(model)
    body = getattr(inner, "base_model", inner)
    inspection.announce_device(model, next(body.parameters()).device, "embeds")
    return body


def stream(
    texts: Iterable[str],
    model: nn.Module,
    tokenizer,
    *,
    max_tokens: int | None = None,
    report: EmbeddingReport | None = None,
) -> Iterator[np.ndarray]:
    """Embed any number of texts; yields float32 (texts, width) in order, chunk by chunk.

    A vector is the mean over a text's tokens, [CLS] and [SEP] included, up to what the model reads;
    the report counts what is cut. The model computes where it is and in its own dtype, in eval
    mode and without its head, and is left as it was.

    Args:
        texts: Strings.
        model: One of the BERT family, whatever its head.
        tokenizer: Its tokenizer.
        max_tokens: Of a batch with its padding; by default 1,024 on a CPU, 32,768 elsewhere.
        report: Is filled in on the way.
    """
    _check(texts, model, tokenizer)
    body = _body(model)
    report = EmbeddingReport() if report is None else report
    report.dtype = str(body.dtype).removeprefix("torch.")
    if max_tokens is None:
        max_tokens = 1024 if body.device.type == "cpu" else 32768
    limit = int(min(inspection.max_input_length(model), tokenizer.model_max_length))
    texts = iter(texts)
    while chunk := list(itertools.islice(texts, CHUNK)):
        encoded = _encode(chunk, tokenizer, limit, report)
        yield _means(encoded, body, tokenizer, max_tokens, report)


def _check(texts, model: nn.Module, tokenizer) -> None:
    """Refuse what would give wrong vectors without an error."""
    if isinstance(texts, str | bytes | Mapping) or hasattr(texts, "columns"):
        raise TypeError(f"texts is of type {type(texts).__name__}: give a list of texts")
    known = model.config.vocab_size
    if len(tokenizer) > known:
        sizes = f"the tokenizer knows {len(tokenizer):,} tokens, the model {known:,}"
        raise ValueError(f"{sizes}: load both under one name")
    casing.require_words(tokenizer)


def _encode(chunk, tokenizer, limit: int, report: EmbeddingReport) -> list[list[int]]:
    """Return the token ids of each text, at most `limit`, and count what is cut."""
    for number, text in enumerate(chunk, report.texts):
        if not isinstance(text, str):
            raise TypeError(f"text {number} is not text but {text!r:.40}: leave it out")
    report.texts += len(chunk)
    encoded, lengths = batching.encode(tokenizer, chunk, max_length=UNCUT)
    cut = [length - limit for length in lengths if length > limit]
    report.cut_texts += len(cut)
    report.cut_tokens += sum(cut)
    for ids in encoded["input_ids"]:
        ids[limit - 1 : -1] = []  # the last is [SEP]
    return encoded["input_ids"]


def _means(encoded, body: nn.Module, tokenizer, max_tokens: int, report) -> np.ndarray:
    """Return the mean hidden state of each text, float32 (texts, width), in their order."""
    groups, means = batching.batches([len(ids) for ids in encoded], max_tokens=max_tokens), []
    with inspection.eval_mode(body), torch.inference_mode():
        for group in groups:
            batch = batching.pad(tokenizer, {"input_ids": encoded}, group, "np")
            padding = int((batch["attention_mask"] == 0).sum())
            report.tokens += batch["input_ids"].size - padding
            report.padding += padding
            # Not by torch.tensor, which asks for the default device.
            ids = torch.from_numpy(batch["input_ids"]).to(body.device)
            mask = torch.from_numpy(batch["attention_mask"]).to(body.device)
            # Without a mask, a GPU may take its fastest attention kernel.
            hidden = body(ids, attention_mask=mask if padding else None).last_hidden_state
            if hidden.shape[:2] != mask.shape:
                raise ValueError("the model computes its first token only; a mean needs all")
            means.append(mean_pool(hidden, mask).cpu())
    return torch.stack(batching.restore(means, groups)).numpy()


def embed(
    texts: Iterable[str], model: nn.Module, tokenizer, *, progress: bool = True, **options
) -> Embedded:
    """Embed texts and keep all vectors, with a progress bar; `options` are those of `stream`."""
    _check(texts, model, tokenizer)
    texts, report = list(texts), EmbeddingReport()
    vectors, done = np.empty((len(texts), model.config.hidden_size), np.float32), 0
    with progress_bar(len(texts), wanted=progress, unit="text") as bar:
        for chunk in stream(texts, model, tokenizer, report=report, **options):
            vectors[done : done + len(chunk)] = chunk
            done += len(chunk)
            bar.update(len(chunk))
    return Embedded(vectors, report)
