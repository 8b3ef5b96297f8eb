"""Embed texts with a BERT-family model.

A few sentences, a table, or a corpus on several devices and hosts.

Notebook 07 uses it. As a program it embeds a folder of shards, restartable, with the same result
whatever N is: `accelerate launch --multi_gpu --num_processes N -m helpers.embedding SOURCE TARGET
--model scibert`, on CPUs as well: without the option accelerate starts a single process there,
whatever N is.
"""

import copy
import itertools
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from helpers.core import machine
from helpers.core.progress import progress_bar
from helpers.models import batching, inspection

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

CHUNK = 2048  # texts that are tokenised and sorted together: memory grows with this and not with the corpus
BF16_UNITS = ("avx512_bf16", "amx_bf16", "arm_bf16")
NO_LISTS = (
    str,
    bytes,
    Mapping,
    pd.DataFrame,
)  # they would give letters, keys or the names of columns
_announced = weakref.WeakSet()


@dataclass
class EmbeddingReport:
    """What an embedding took. tokens.

    Computed, [CLS] and [SEP] included; padding: positions computed for nothing; cut_texts,
    cut_tokens: thrown away at the limit; windowed_texts: too long, and read in windows.
    """

    texts: int = 0
    tokens: int = 0
    padding: int = 0
    cut_texts: int = 0
    cut_tokens: int = 0
    windowed_texts: int = 0
    device: str = ""
    dtype: str = ""

    def __str__(self) -> str:
        share = self.padding / max(self.tokens + self.padding, 1)
        cut = f"{self.cut_tokens:,} tokens of {self.cut_texts:,} texts cut off, {self.windowed_texts:,} texts windowed"
        return f"{self.texts:,} texts on {self.device} in {self.dtype}: {self.tokens:,} tokens, {share:.1%} padding; {cut}"


class Embedded(NamedTuple):
    """Vectors, float32 of shape (texts, width), in the order of the texts; and what they took."""

    vectors: np.ndarray
    report: EmbeddingReport


def mean_pool(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean over the real tokens, in float32. hidden.

    (texts, length, width); mask: (texts, length) of 0 and 1.

    Raises ValueError for other shapes, as a model gives them that computes its first token only.
    """
    if hidden.shape[:2] != mask.shape:
        raise ValueError(
            f"hidden states of {tuple(hidden.shape[:2])} and a mask of {tuple(mask.shape)} (texts, tokens): a mean "
            "needs all tokens, so take the model as it was before distillation.read_first_token"
        )
    weights = mask.to(hidden.device, torch.float32)
    return (hidden.float() * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)


def choose_dtype(device: torch.device, precision: str = "auto") -> torch.dtype:
    """The format to compute in, "float32", "bfloat16", "float16", or "auto".

    16 bit where the device has such units.
    """
    if precision in ("float32", "bfloat16", "float16"):
        return getattr(torch, precision)
    if precision != "auto":
        raise ValueError(
            f'precision has to be "auto", "float32", "bfloat16" or "float16", not {precision!r}'
        )
    if device.type == "cuda":
        major, _ = torch.cuda.get_device_capability(device)
        return torch.bfloat16 if major >= 8 else torch.float16 if major == 7 else torch.float32
    units = device.type == "cpu" and any(machine.cpu_features().get(unit) for unit in BF16_UNITS)
    return torch.bfloat16 if units else torch.float32


def _prepare(model: nn.Module, precision: str) -> tuple[nn.Module, torch.device]:
    """The model without its head, as a copy where it has to be in another format.

    And the device it is on.
    """
    whole = original = getattr(model, "_orig_mod", model)  # of a compiled one
    whole = (
        whole.get_base_model() if hasattr(whole, "get_base_model") else whole
    )  # of one with peft's adapters
    body = getattr(whole, "base_model", whole)
    body = model if body is original else body  # compiled, if it has no head
    kinds, device = (
        {parameter.dtype for parameter in body.parameters()},
        next(body.parameters()).device,
    )
    # torch's quantised layers hide their weights from parameters(), torchao's tensors call
    # themselves float32.
    hidden = any("quantized" in type(module).__module__ for module in body.modules())
    hidden = hidden or any(
        type(parameter.data) is not torch.Tensor for parameter in body.parameters()
    )
    if device.type == "meta":
        raise ValueError(
            "the model is on the device 'meta', which holds no numbers: load its weights first"
        )
    # Weights that are already in another format stay in it.
    convert = precision != "auto" or (kinds == {torch.float32} and not hidden)
    dtype = choose_dtype(device, precision) if convert else next(body.parameters()).dtype
    if model not in _announced:
        _announced.add(model)
        best = machine.devices()[0]
        idle = (
            f", while {best} stands idle: model.to({best!r}) would use it"
            if device.type == "cpu" != best
            else ""
        )
        print(f"{type(model).__name__} embeds on {device} in {str(dtype)[6:]}{idle}")
    if not convert or kinds == {dtype}:
        return body, device
    # Each tensor is converted by itself and not copied before: that takes half the memory of the
    # model, and no more.
    memo = {
        id(one): nn.Parameter(one.detach().to(dtype), requires_grad=False)
        for one in body.parameters()
    }
    memo |= {id(one): one.to(dtype) for one in body.buffers() if one.is_floating_point()}
    return copy.deepcopy(body, memo), device


def stream(
    texts: Iterable[str], model: nn.Module, tokenizer, *, max_tokens: int | None = None, max_length: int | None = None,
    long: str = "truncate", precision: str = "auto", report: EmbeddingReport | None = None,
) -> Iterator[np.ndarray]:  # fmt: skip
    """Embed any number of texts.

    Yields float32 vectors (texts of a chunk, width) in order, with two chunks in memory.

    A vector is the mean over a text's real tokens, [CLS] and [SEP] included. The model computes where it is, without
    its head and its dropout, and is left as it was.
    max_tokens: most tokens of a batch, with padding; by default 1,024 on the CPU, 32,768 elsewhere
    max_length: most tokens of a text; by default the model's limit, 512 for BERT
    long: "truncate" cuts longer texts off; "window" reads them in pieces of about equal length, and takes one mean
    precision: see `choose_dtype`. A float32 model is converted anew in each call: for single texts, one after another,
        convert it yourself once, or say "float32"
    report: is filled in on the way

    Raises TypeError for what is no text, ValueError for wrong options, for the tokenizer of another
    model or one without words, and for a model that computes its first token only.
    """
    known = getattr(model.config, "max_position_embeddings", 512)
    limit = min(known, inspection.max_input_length(model), tokenizer.model_max_length)
    if isinstance(texts, NO_LISTS):
        raise TypeError(
            f"texts is of type {type(texts).__name__}: give a list of texts, or one column of a table"
        )
    max_length = limit if max_length is None else max_length
    if long not in ("truncate", "window") or not 3 <= max_length <= limit:
        raise ValueError(
            f'long has to be "truncate" or "window", and max_length 3 to {limit} for this model'
        )
    if len(tokenizer) > model.config.vocab_size:
        sizes = (
            f"the tokenizer knows {len(tokenizer):,} tokens, the model {model.config.vocab_size:,}"
        )
        raise ValueError(
            f"{sizes}: load both under one name. A wrong pair seldom gives an error, only wrong vectors"
        )
    _require_words(tokenizer)
    (body, device), report, texts, waiting = (
        _prepare(model, precision),
        report or EmbeddingReport(),
        iter(texts),
        None,
    )
    report.device, report.dtype = device.type, str(next(body.parameters()).dtype)[6:]
    while chunk := list(itertools.islice(texts, CHUNK)):
        pieces, owners = _pieces(chunk, tokenizer, max_length, long, report)
        budget = (1024 if device.type == "cpu" else 32768) if max_tokens is None else max_tokens
        groups = batching.batches([len(piece) for piece in pieces], max_tokens=budget)
        launched = _launch(pieces, groups, body, tokenizer.pad_token_id or 0, device, report)
        report.texts += len(chunk)
        if waiting:  # fetched only now: a card computed it while this chunk was tokenised
            yield _fetch(*waiting)
        waiting = launched, groups, pieces, owners
    if waiting:
        yield _fetch(*waiting)


def _pieces(
    chunk: list[str], tokenizer, limit: int, long: str, report: EmbeddingReport
) -> tuple[list[list[int]], list[int]]:
    """Token ids of a chunk's texts, none longer than `limit`, and for each piece the number of its text."""
    for number, text in enumerate(chunk, report.texts):
        if not isinstance(text, str):
            raise TypeError(
                f"text {number} is no text but {text!r:.40}: fill in or leave out missing ones first"
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = f"text {number} holds half a character, {text[error.start]!r} at position {error.start}"
            raise ValueError(
                f"{half}: text.encode('utf-8', 'replace').decode() puts a '?' there"
            ) from None
    quiet = {"return_attention_mask": False, "return_token_type_ids": False, "verbose": False}
    pieces, owners = [], []
    for owner, (start, *inner, end) in enumerate(tokenizer(chunk, **quiet)["input_ids"]):
        size, count = limit - 2, len(inner)
        if count > size and long == "window":
            report.windowed_texts += 1
            size = -(
                -count // -(-count // size)
            )  # of about equal length: no window of two leftover tokens
        elif count > size:
            report.cut_texts, report.cut_tokens = (
                report.cut_texts + 1,
                report.cut_tokens + count - size,
            )
            count = size
        for place in range(0, max(count, 1), size):
            pieces.append([start, *inner[place : min(place + size, count)], end])
            owners.append(owner)
    return pieces, owners


def _launch(pieces, groups, body, pad: int, device, report: EmbeddingReport) -> list[torch.Tensor]:
    """Mean vectors of all pieces, batch by batch, on the device.

    A card may still be computing when this returns.
    """
    pooled, training = [], [module for module in body.modules() if module.training]
    body.eval()
    try:
        for group in groups:
            rows = [
                torch.tensor(pieces[number], device="cpu") for number in group
            ]  # whatever the default device
            lengths = torch.tensor([len(row) for row in rows], device="cpu")
            ids = pad_sequence(rows, batch_first=True, padding_value=pad)
            mask = (torch.arange(ids.shape[1], device="cpu") < lengths[:, None]).long().to(device)
            padding = ids.numel() - int(lengths.sum())
            with (
                torch.inference_mode()
            ):  # without a mask, a card may take its fastest attention kernel
                output = body(input_ids=ids.to(device), attention_mask=mask if padding else None)
                pooled.append(mean_pool(output.last_hidden_state, mask))
            report.tokens, report.padding = (
                report.tokens + ids.numel() - padding,
                report.padding + padding,
            )
    finally:
        for module in training:
            module.training = True
    return pooled


def _fetch(pooled, groups, pieces, owners: list[int]) -> np.ndarray:
    """A chunk's vectors on the CPU, one for each text in their order."""
    vectors = torch.stack(batching.restore((rows.cpu() for rows in pooled), groups)).numpy()
    if len(set(owners)) == len(owners):
        return vectors
    weights = np.array([[len(piece)] for piece in pieces], np.float32)
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    return np.add.reduceat(vectors * weights, starts) / np.add.reduceat(weights, starts)


def embed(
    texts: Iterable[str], model: nn.Module, tokenizer, *, progress: bool = True, **options
) -> Embedded:
    """Embed texts and keep all vectors; options and errors are those of `stream`.

    A bar shows where people look.
    """
    texts, report = texts if isinstance(texts, NO_LISTS) else list(texts), EmbeddingReport()
    vectors = np.empty((len(texts), model.config.hidden_size), np.float32)
    with progress_bar(len(texts), wanted=progress, unit="text") as bar:
        done = 0
        for chunk in stream(texts, model, tokenizer, report=report, **options):
            vectors[done : (done := done + len(chunk))] = chunk
            bar.update(len(chunk))
    return Embedded(vectors, report)


def _require_words(tokenizer) -> None:
    """Raises ValueError if there is nothing in the vocabulary but special tokens."""
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise ValueError(
            "the vocabulary holds no words, so every word becomes unknown: the folder that it was loaded from has no "
            "vocabulary file. Save the tokenizer beside the model (tokenizer.save_pretrained)"
        )


def check_casing(tokenizer) -> str:
    """Says whether a vocabulary is "cased" or "uncased".

    ValueError if its tokenizer treats it as the other.

    That happens where a repository has no tokenizer settings: the default lower-cases everything.
    ValueError as well for a vocabulary without words.
    """
    _require_words(tokenizer)
    added = {
        *tokenizer.get_added_vocab(),
        *tokenizer.all_special_tokens,
    }  # found before anything is lower-cased
    words = sorted(word for word in tokenizer.get_vocab() if word not in added)
    capitals = [word for word in words if word.lower() != word]
    cased = (
        len(capitals) > len(words) / 100
    )  # a stray symbol, as the sign of angstrom, makes no cased vocabulary
    known = (
        capitals
        if cased
        else [word.capitalize() for word in words if word.isalpha() and word.capitalize() != word]
    )
    word = "Hello" if "Hello" in known else max(known, key=len, default="Hello")
    if cased != (tokenizer.tokenize(word) == tokenizer.tokenize(word.lower())):
        return "cased" if cased else "uncased"
    fault = f"the vocabulary has {len(capitals):,} words with capitals, but {word!r} becomes {tokenizer.tokenize(word)}"
    raise ValueError(f"{fault}: load the tokenizer with do_lower_case={not cased}")
