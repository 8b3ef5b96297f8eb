"""Checks for the exercises of notebook 01 (device placement)."""

import tempfile
from collections.abc import Callable

from helpers.core import tensors
from helpers.core.quiet import quiet
from helpers.exercises import exercise, tiny_models
from helpers.lessons import placement

import numpy as np
import torch
from torch import nn
from transformers import BertTokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "this", "film", "was", "not"]


@exercise
def check_01_1(answer: type[nn.Module]) -> str | None:
    """A module class with `linear` and a `scale` of 0.5s that moves and no checkpoint needs."""
    if not (isinstance(answer, type) and issubclass(answer, nn.Module)):
        return "the answer is the class itself, a subclass of nn.Module: answer_1 = Halved"
    module, x = answer(), torch.arange(8.0).reshape(2, 4)
    if not torch.allclose(module(x), module.linear(x) * 0.5):
        return "on the CPU it no longer computes linear(x) * 0.5"
    kinds = {name: kind for name, kind, _ in tensors.walk(module) if "linear." not in name}
    if not kinds:
        return "scale should stay a tensor of the module"
    # Inside another module, as in a real model: a .to() of the answer's own is not called there.
    if placement.left_behind(nn.Sequential(module).to("meta"), "meta"):
        return "scale stayed behind when the model moved: only parameters and buffers move"
    if "parameter" in kinds.values():
        return "scale is a parameter now, which is saved and trained: a buffer is neither"
    if "buffer" in kinds.values():
        return "scale is in the state dict, so checkpoints need it: persistent=False keeps it out"
    return None


@exercise
def check_01_2(answer: Callable[[str, list[str], dict], np.ndarray]) -> str | None:
    """A function (folder, texts, device_map) that returns one NumPy vector for each text."""
    texts = ["good", "this film was not good"]
    model = tiny_models.new_model()
    tokenizer = BertTokenizer(vocab={word: place for place, word in enumerate(WORDS)})
    padded = tokenizer(texts, padding=True, return_tensors="pt")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        found = answer(folder, texts, {"embeddings": "cpu", "encoder": "disk", "pooler": "cpu"})
        if not isinstance(found, np.ndarray) or found.shape != (2, 32):
            return f"a NumPy array of shape (2, 32) is asked for, not {found!r:.60}"
        hidden = model(**padded).last_hidden_state.detach()
        mask = padded["attention_mask"].unsqueeze(-1)
        if np.allclose(found, hidden.mean(1), atol=1e-4):
            return "the padding is in the mean: multiply by the attention mask before the sum"
        if not np.allclose(found, (hidden * mask).sum(1) / mask.sum(1), atol=1e-4):
            return "it is not the mean of the vectors of each text's own tokens"
        try:
            answer(folder, texts, {"embeddings": "cpu", "encoder": "disk"})
        except ValueError:
            return None
    return "a device_map without the pooler raised nothing: it did not reach from_pretrained"
