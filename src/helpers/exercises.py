"""Checks for the notebooks' exercises: they try the learner's answer and say "correct" or what is still wrong.

Named `check_<notebook>_<exercise>`. Each prints "not answered yet" while the answer is None or ..., then "not quite,
because ..." with a hint, then "correct". An answer that raises is a wrong answer, not a broken notebook.
"""

import functools
from collections.abc import Callable
from typing import Any

from helpers import placement

import torch
from torch import nn
from transformers import BatchEncoding


def _exercise(find_fault: Callable[..., str | None]) -> Callable[..., None]:
    """Makes a check of a function that returns what is wrong with an answer, or None if nothing is."""

    @functools.wraps(find_fault)
    def check(answer: Any, *context: Any) -> None:
        if answer is None or answer is ...:
            print("not answered yet")
            return
        try:
            fault = find_fault(answer, *context)
        except Exception as error:  # whatever a learner's code may raise
            fault = f"it raised {type(error).__name__}: {str(error).strip() or 'no message'}"
        print("correct" if fault is None else f"not quite, because {fault}")

    return check


@_exercise
def check_00_1(answer: tuple[str, str], classify: Callable[[list[str]], torch.Tensor]) -> str | None:
    """A sentence of at least three words with the label a person gives it, which `classify` gets wrong."""
    if not (isinstance(answer, tuple) and len(answer) == 2 and answer[1] in ("positive", "negative")):
        return 'the answer is a pair of a sentence and "positive" or "negative"'
    sentence, label = answer
    if not isinstance(sentence, str) or len(sentence.split()) < 3:
        return "the first of the two has to be a sentence, three words at least"
    chance = float(classify([sentence])[0])
    if (chance > 0.5) == (label == "positive"):
        return f"the classifier agrees with you: P(positive) = {chance:.2f}. Try negation, irony or faint praise"
    return None


@_exercise
def check_00_2(answer: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> str | None:
    """A function (hidden, mask) that gives the largest value over the real tokens, shape (texts, width)."""
    hidden = -1 - torch.rand(2, 5, 3, generator=torch.Generator().manual_seed(0))  # all negative
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    hidden[0, 3:] = -0.5  # larger than every real token of the first text
    before = hidden.clone()
    result = answer(hidden, mask)
    if not isinstance(result, torch.Tensor) or result.shape != (2, 3):
        return f"the result should be a tensor of shape (2, 3), not {getattr(result, 'shape', type(result).__name__)}"
    if torch.equal(result[0], torch.zeros(3)):
        return "padding set to 0 wins when all real values are negative"
    if torch.equal(result[0], hidden[0].amax(dim=0)):
        return "padding wins: the mask was not used"
    if not torch.allclose(result, torch.stack([before[0, :3].amax(dim=0), before[1].amax(dim=0)])):
        return "the values are not the largest over the real tokens"
    if not torch.equal(hidden, before):
        return "the result is right, but the caller's tensor was changed on the way"
    return None


@_exercise
def check_01_1(answer: type[nn.Module]) -> str | None:
    """A module class with `linear` (4 to 4) and an untrained `scale` of 0.5s that moves and no checkpoint needs."""
    if not (isinstance(answer, type) and issubclass(answer, nn.Module)):
        return "the answer is the class itself, a subclass of nn.Module: answer_1 = Halved"
    module, x = answer(), torch.arange(8.0).reshape(2, 4)
    with torch.no_grad():
        if not torch.allclose(module(x), module.linear(x) * 0.5):
            return "on the CPU it no longer computes linear(x) * 0.5"
    table = placement.audit(module)
    table = table[~table["name"].str.startswith("linear.")]
    if table.empty:
        return "no tensor is left besides linear: keep scale as a tensor of the module"
    if behind := placement.left_behind(module.to("meta"), "meta"):
        return f"{', '.join(behind)} stayed behind when the module moved"
    if (table["kind"] == "parameter").any():
        return "scale is a parameter now, so an optimizer would train it"
    if (table["kind"] == "buffer").any():
        return "scale is in the state dict, so a checkpoint without it no longer loads: persistent=False keeps it out"
    return None


@_exercise
def check_01_2(answer: Callable[[Any, Any], Any]) -> str | None:
    """A function (thing, device) that returns the thing with all its tensors moved and leaves the old one alone."""

    def made():
        ids = torch.tensor([[1, 2]])
        return {"encodings": [BatchEncoding({"input_ids": ids})], "pair": (ids, None), "name": "cuda", "label": ids[0]}

    old = made()
    new = answer(old, "meta")
    if not isinstance(new, dict) or list(new) != list(old):
        return f"for a dict with the keys {list(old)} it returned {new!r:.80}"
    if any(not isinstance(new[key], type(old[key])) for key in old) or len(new["pair"]) != 2:
        return "a list, a tuple or a text came back as something else"
    if not isinstance(new["encodings"][0], BatchEncoding):
        return "the BatchEncoding in the list came back as something else"
    if new["pair"][1] is not None or new["name"] != "cuda":
        return "None and texts hold no tensor and have to come back as they are"
    tensors = {
        "the tensor in the dict": new["label"],
        "the tensor in the tuple": new["pair"][0],
        "the tensor in the BatchEncoding in the list": new["encodings"][0]["input_ids"],
    }
    for name, tensor in tensors.items():
        if tensor.device.type != "meta":
            return f"{name} is still on {tensor.device}: is the result of .to() used?"
    if old["encodings"][0]["input_ids"].device.type != "cpu":
        return "the old BatchEncoding has moved as well: its .to() works in place, so make a new one"
    if old["label"].device.type != "cpu" or old["pair"][0].device.type != "cpu":
        return "the old dict or tuple has been changed: build a new one"
    return None


@_exercise
def check_01_3(answer: Callable[[nn.Module, Any], torch.optim.Optimizer]) -> str | None:
    """A function (model, device) that moves the model and returns an optimizer that really trains it there."""
    model = nn.Linear(4, 2)
    optimizer = answer(model, "meta")
    if not isinstance(optimizer, torch.optim.Optimizer):
        return f"it should return the optimizer, not {type(optimizer).__name__}"
    if model.weight.device.type != "meta":
        return f"the model was not moved: it is still on {model.weight.device}"
    placement.check_optimizer(optimizer, model)
    model = nn.Linear(4, 2)
    optimizer, before = answer(model, "cpu"), [parameter.detach().clone() for parameter in model.parameters()]
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    if any(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)):
        return "a step of the optimizer left some of the model's parameters as they were"
    return None
