"""Checks for the exercises of notebook 02 (GPU memory)."""

from collections.abc import Callable
from typing import Any

from helpers.exercises import exercise
from helpers.exercises.tiny_models import new_classifier
from helpers.lessons import memory

import torch
from torch import nn


@exercise
def check_02_1(answer: dict[str, Any]) -> str | None:
    """Check options that train all of BERT-base on 4 GiB, 32 texts of 512 tokens a step."""
    options = {"batch": 32, "accumulate": 1, "length": 512} | answer
    if options["length"] != 512 or options["batch"] * options["accumulate"] != 32:
        texts = f"{options['batch']} x {options['accumulate']} texts of {options['length']} tokens"
        return f"that is {texts}, not 32 of 512"
    trains = options.get("mode", "training") == "training"
    if options.get("freeze") is not None or options.get("lora") or not trains:
        return "not every parameter of the model is trained"
    dtype = str(options.get("dtype", "float32")).removeprefix("torch.")
    if dtype != "float32" or options.get("optimizer", "adamw") != "adamw":
        return "the weights should stay in float32, and the optimizer should be AdamW"
    peak = memory.predict_peak("bert-base", **options | {"device": "cuda"})
    verdict = peak.verdict(4)
    if verdict != "fits":
        largest = max(peak.terms, key=peak.terms.get)
        size = f"{peak.total / 2**30:.2f} GiB"
        return f"it takes {size}, which is: {verdict}. The largest part is {largest}"
    return None


@exercise
def check_02_2(answer: Callable[[nn.Module, list[dict]], Any]) -> str | None:
    """Check a function that leaves the gradients of one large batch in the model."""
    ids, labels = torch.arange(24).reshape(6, 4), torch.tensor([0, 1, 1, 0, 1, 1])
    whole, pieces = new_classifier(), new_classifier()
    whole(input_ids=ids, labels=labels).loss.backward()
    # Texts whose activations wait for backward(), now and at every forward pass.
    waiting, most = [], []
    pieces.bert.embeddings.register_forward_hook(lambda module, _, out: waiting.append(len(out)))
    pieces.register_forward_hook(lambda *_: most.append(sum(waiting)))
    pieces.classifier.bias.register_post_accumulate_grad_hook(lambda _: waiting.clear())
    answer(pieces, [{"input_ids": ids[i : i + 2], "labels": labels[i : i + 2]} for i in (0, 2, 4)])
    pairs = list(zip(whole.parameters(), pieces.parameters(), strict=True))
    if any(not torch.equal(a, b) for a, b in pairs):
        return "the weights have changed: only gradients were asked for, no step of the optimizer"
    if any(b.grad is None for a, b in pairs):
        return "the model has no gradients afterwards: call backward() for every micro-batch"
    wanted, got = (torch.cat([p.grad.flatten() for p in side]) for side in zip(*pairs, strict=True))
    if torch.allclose(got, 3 * wanted, atol=1e-5):
        return "the gradients are 3 times too large: each loss is a mean, and means do not add up"
    if not torch.allclose(got, wanted, atol=1e-5):
        return "the gradients are not those of the large batch: does every micro-batch count alike?"
    if max(most) > 2:
        texts = f"the activations of {max(most)} texts are alive at once"
        return f"{texts}: call backward() before the next micro-batch"
    return None
