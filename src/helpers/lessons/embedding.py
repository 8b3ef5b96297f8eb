"""Embed texts as the recipe does, and refuse what would give wrong vectors (notebook 07)."""

from collections.abc import Iterable, Mapping

from helpers.models import inspection
from helpers.recipes.embed_corpus import embed_sorted

import numpy as np
from torch import nn


def embed(
    texts: Iterable[str], model: nn.Module, tokenizer, *, max_tokens: int | None = None
) -> np.ndarray:
    """Return the vectors of texts, float32 (texts, width), in their order.

    A vector is the mean over a text's tokens, [CLS] and [SEP] included, up to what the model reads.
    The model computes where it is and in its own dtype, in eval mode and without wrappers and
    head; the first call prints where. It is left as it was.

    Args:
        texts: Strings.
        model: One of the BERT family, whatever its head.
        tokenizer: Its tokenizer.
        max_tokens: Of a batch with its padding; by default 1,024 on a CPU, 32,768 elsewhere.

    Raises:
        TypeError: For what is not a list of texts.
        ValueError: For a tokenizer that is not the model's, or whose vocabulary holds no words.
    """
    if isinstance(texts, str | bytes | Mapping) or hasattr(texts, "columns"):
        raise TypeError(f"texts is of type {type(texts).__name__}: give a list of texts")
    texts, known = list(texts), model.config.vocab_size
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"text {number} is not text but {text!r:.40}: leave it out")
    if len(tokenizer) > known:
        sizes = f"the tokenizer knows {len(tokenizer):,} tokens, the model {known:,}"
        raise ValueError(f"{sizes}: load both under one name")
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        message = "the vocabulary holds no words: save the tokenizer beside the model"
        raise ValueError(f"{message} (tokenizer.save_pretrained)")
    if not texts:
        return np.empty((0, model.config.hidden_size), np.float32)
    inner = inspection.unwrap(model)
    body = getattr(inner, "base_model", inner)
    inspection.announce_device(model, body.device, "embeds")
    limit = int(min(inspection.max_input_length(model), tokenizer.model_max_length))
    most = max_tokens or (1024 if body.device.type == "cpu" else 32768)
    with inspection.eval_mode(body):
        return embed_sorted(texts, body, tokenizer, most, limit).numpy()
