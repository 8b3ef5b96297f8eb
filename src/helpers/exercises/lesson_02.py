"""Checks for the exercises of notebook 02 (GPU memory)."""

from collections.abc import Callable
from typing import Any

from helpers.exercises import exercise
from helpers.lessons import memory

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification


def _tiny_classifier() -> nn.Module:
    config = BertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        vocab_size=50,
    )
    torch.manual_seed(0)
    return BertForSequenceClassification(config)


@exercise
def check_02_1(answer: dict[str, Any]) -> str | None:
    """Check options that train all of BERT-base on 4 GiB, 32 texts of 512 tokens a step."""
    if not isinstance(answer, dict):
        kind = type(answer).__name__
        return f'the answer is a dict of options, such as {{"batch": 16}}, not a {kind}'
    options = {"batch": 32, "accumulate": 1, "length": 512} | answer
    if options["length"] != 512 or options["batch"] * options["accumulate"] != 32:
        texts = f"{options['batch']} x {options['accumulate']} texts of {options['length']} tokens"
        return f"that is {texts}, not 32 of 512"
    if (
        options.get("freeze") is not None
        or options.get("lora")
        or options.get("mode", "training") != "training"
    ):
        return "not every parameter of the model is trained"
    if (
        str(options.get("dtype", "float32")) not in ("float32", "torch.float32")
        or options.get("optimizer", "adamw") != "adamw"
    ):
        return "the weights should stay in float32, and the optimizer should be AdamW"
    peak = memory.predict_peak("bert-base", **options | {"device": "cuda"})
    if (verdict := peak.verdict(4)) != "fits":
        largest = max(peak.terms, key=peak.terms.get)
        size = f"{peak.total / 2**30:.2f} GiB"
        return f"it takes {size}, which is: {verdict}. The largest part is {largest}"
    return None


@exercise
def check_02_2(answer: Callable[[nn.Module, list[dict]], Any]) -> str | None:
    """Check a function that leaves the gradients of one large batch in the model."""
    ids, labels = torch.arange(24).reshape(6, 4), torch.tensor([0, 1, 1, 0, 1, 1])
    whole, pieces = _tiny_classifier().eval(), _tiny_classifier().eval()
    whole(input_ids=ids, labels=labels).loss.backward()
    alive, most = (
        [],
        [],
    )  # texts whose activations wait for backward(), now and at every forward pass
    pieces.register_forward_hook(lambda *_: most.append(sum(alive)))
    pieces.bert.embeddings.register_forward_hook(lambda module, args, out: alive.append(len(out)))
    pieces.classifier.bias.register_post_accumulate_grad_hook(lambda parameter: alive.clear())
    answer(pieces, [{"input_ids": ids[i : i + 2], "labels": labels[i : i + 2]} for i in (0, 2, 4)])
    pairs = list(zip(whole.parameters(), pieces.parameters(), strict=True))
    if any(not torch.equal(a, b) for a, b in pairs):
        return "the weights have changed: only gradients were asked for, no step of the optimizer"
    if any(b.grad is None for a, b in pairs):
        return "the model has no gradients afterwards: call backward() for every micro-batch"
    wanted, got = (torch.cat([p.grad.flatten() for p in side]) for side in zip(*pairs, strict=True))
    if torch.allclose(got, 3 * wanted, atol=1e-5):
        return (
            "the gradients are 3 times too large for 3 micro-batches: each loss is a mean, and "
            "means do not add up"
        )
    if not torch.allclose(got, wanted, atol=1e-5):
        return (
            "the gradients are not those of the large batch: does every micro-batch count, and "
            "with the same weight?"
        )
    if max(most) > 2:
        return (
            f"the activations of {max(most)} texts are alive at once: call backward() before the "
            "next micro-batch"
        )
    return None


@exercise
def check_02_3(answer: Callable[[nn.Module], Any]) -> str | None:
    """Check a function that leaves only the head to train and makes the body fixed."""
    model, ids = _tiny_classifier().train(), torch.ones(2, 6, dtype=torch.long)
    answer(model)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    if wrong := sorted(name for name in trained if not name.startswith("classifier.")):
        return f"{len(wrong)} parameters of the body are still trained, such as {wrong[0]}"
    if trained != {"classifier.weight", "classifier.bias"}:
        return "the head is frozen as well, so nothing is left to train"
    if not torch.equal(model.bert(ids).pooler_output, model.bert(ids).pooler_output):
        return "the body gives another answer at every call: its dropout is still on"
    if not (model.classifier.training and model.dropout.training):
        return "the head is no longer in training mode: only the body should be switched to eval"
    return None
