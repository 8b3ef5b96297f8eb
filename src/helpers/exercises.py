"""Checks for the notebooks' exercises: they try the learner's answer and say "correct" or what is still wrong.

Named `check_<notebook>_<exercise>`. Each prints "not answered yet" while the answer is None or ..., then "not quite,
because ..." with a hint, then "correct". An answer that raises is a wrong answer, not a broken notebook.
"""

import functools
from collections.abc import Callable
from typing import Any, get_origin

from helpers import memory, placement

import torch
from torch import nn
from transformers import BatchEncoding, BertConfig, BertForSequenceClassification


def _exercise(find_fault: Callable[..., str | None]) -> Callable[..., None]:
    """Makes a check of a function that returns what is wrong with an answer, or None if nothing is."""

    wants_function = get_origin(find_fault.__annotations__["answer"]) is Callable

    @functools.wraps(find_fault)
    def check(answer: Any, *context: Any) -> None:
        if answer is None or answer is ...:
            print("not answered yet")
            return
        try:
            if wants_function and not callable(answer):
                fault = f"it should be a function, named without brackets, not a {type(answer).__name__}"
            else:
                fault = find_fault(answer, *context)
        except Exception as error:  # whatever a learner's code may raise
            fault = f"it raised {type(error).__name__}: {str(error).strip() or 'no message'}"
        print("correct" if fault is None else f"not quite, because {fault}")

    return check


@_exercise
def check_00_1(answer: tuple[str, str], classify: Callable[[list[str]], torch.Tensor]) -> str | None:
    """A sentence of at least three words with the label a person gives it, which `classify` gets wrong."""
    if not (isinstance(answer, tuple | list) and len(answer) == 2 and answer[1] in ("positive", "negative")):
        return 'the answer is a pair: (a sentence, "positive" or "negative")'
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
    if hasattr(result, "indices") and hasattr(result, "values") and not isinstance(result, torch.Tensor):
        return ".max(dim=1) gives values and positions: use .amax(dim=1), or .values of it"
    if not isinstance(result, torch.Tensor) or result.shape != (2, 3):
        return f"the result should be a tensor of shape (2, 3), not {getattr(result, 'shape', type(result).__name__)}"
    if torch.equal(result[0], torch.zeros(3)):
        return "padding set to 0 wins when all real values are negative"
    if torch.equal(result[0], before[0].amax(dim=0)):
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
    # Inside another module, as in a real model: a .to() of the answer's own is not called there.
    if behind := placement.left_behind(nn.Sequential(module).to("meta"), "meta"):
        names = ", ".join(name.removeprefix("0.") for name in behind)
        return f"{names} stayed behind when a model that holds this module moved: only parameters and buffers move"
    if (table["kind"] == "parameter").any():
        return (
            "scale is a parameter now: it would be saved, and an optimizer would train it unless requires_grad is off; "
            "a buffer says what it is"
        )
    if (table["kind"] == "buffer").any():
        return "scale is in the state dict, so a checkpoint without it no longer loads: persistent=False keeps it out"
    return None


@_exercise
def check_01_2(answer: Callable[[Any, Any], Any]) -> str | None:
    """A function (thing, device) that returns the thing with all its tensors moved and leaves the old one alone."""

    def made():
        ids = torch.tensor([[1, 2]])
        encodings = [BatchEncoding({"input_ids": ids})]
        return {"encodings": encodings, "pair": (ids, None), "list": [ids], "name": "cuda", "label": ids[0]}

    old = made()
    new = answer(old, "meta")
    if not isinstance(new, dict) or list(new) != list(old):
        return f"for a dict with the keys {list(old)} it returned {new!r:.80}"
    for key, value in old.items():
        got, wanted = type(new[key]), type(value)
        if not issubclass(got, wanted):
            return f"{key!r} came back as something else: {got.__name__}, not {wanted.__name__}"
        if wanted in (list, tuple) and len(new[key]) != len(value):
            return f"{key!r} came back with a length of {len(new[key])}, not {len(value)}"
    if not isinstance(new["encodings"][0], BatchEncoding):
        return f"the BatchEncoding in the list came back as something else: {type(new['encodings'][0]).__name__}"
    if new["pair"][1] is not None or new["name"] != "cuda":
        return "None and texts hold no tensor and have to come back as they are"
    tensors = {
        "the tensor in the dict": new["label"],
        "the tensor in the tuple": new["pair"][0],
        "the tensor in the list": new["list"][0],
        "the tensor in the BatchEncoding in the list": new["encodings"][0]["input_ids"],
    }
    for name, tensor in tensors.items():
        if tensor.device.type != "meta":
            hint = "is the result of .to() used?"
            if "BatchEncoding" in name:  # the others have moved
                hint = "a BatchEncoding is a UserDict, not a dict, so isinstance(thing, dict) misses it"
            return f"{name} is still on {tensor.device}: {hint}"
    if old["encodings"][0]["input_ids"].device.type != "cpu":
        return "the old BatchEncoding has moved as well: its .to() works in place, so make a new one"
    if any(tensor.device.type != "cpu" for tensor in (old["label"], old["pair"][0], old["list"][0])):
        return "the old dict, tuple or list has been changed: build a new one"
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
    try:
        placement.check_optimizer(optimizer, model)
    except RuntimeError:
        return (
            "the optimizer was built before the move and still holds the old parameters: move first, and only then "
            "build the optimizer"
        )
    model = nn.Linear(4, 2)
    optimizer, before = answer(model, "cpu"), [parameter.detach().clone() for parameter in model.parameters()]
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    if any(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)):
        return "a step of the optimizer left some of the model's parameters as they were"
    return None


def _tiny_classifier() -> nn.Module:
    config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=50)
    torch.manual_seed(0)
    return BertForSequenceClassification(config)


@_exercise
def check_02_1(answer: dict[str, Any]) -> str | None:
    """Options of `predict_peak` that train all of BERT-base on 4 GiB, 32 texts of 512 tokens for every step."""
    if not isinstance(answer, dict):
        return f'the answer is a dict of options, such as {{"batch": 16}}, not a {type(answer).__name__}'
    options = {"batch": 32, "accumulate": 1, "length": 512} | answer
    if options["length"] != 512 or options["batch"] * options["accumulate"] != 32:
        return (
            f"that is {options['batch']} x {options['accumulate']} texts of {options['length']} tokens, not 32 of 512"
        )
    if options.get("freeze") is not None or options.get("lora") or options.get("mode", "training") != "training":
        return "not every parameter of the model is trained"
    if options.get("dtype", "float32") != "float32" or options.get("optimizer", "adamw") != "adamw":
        return "the weights should stay in float32, and the optimizer should be AdamW"
    peak = memory.predict_peak("bert-base", **options | {"device": "cuda"})
    if (verdict := peak.verdict(4)) != "fits":
        largest = max(peak.terms, key=peak.terms.get)
        return f"it takes {peak.total / 2**30:.2f} GiB, which is: {verdict}. The largest part is {largest}"
    return None


@_exercise
def check_02_2(answer: Callable[[nn.Module, list[dict]], Any]) -> str | None:
    """A function (model, micro-batches) that leaves the gradients of one large batch in the model."""
    ids, labels = torch.arange(24).reshape(6, 4), torch.tensor([0, 1, 1, 0, 1, 1])
    whole, pieces = _tiny_classifier().eval(), _tiny_classifier().eval()
    whole(input_ids=ids, labels=labels).loss.backward()
    answer(pieces, [{"input_ids": ids[i : i + 2], "labels": labels[i : i + 2]} for i in (0, 2, 4)])
    pairs = list(zip(whole.parameters(), pieces.parameters(), strict=True))
    if any(not torch.equal(a, b) for a, b in pairs):
        return "the weights have changed: only gradients were asked for, no step of the optimizer"
    if any(b.grad is None for a, b in pairs):
        return "the model has no gradients afterwards: call backward() for every micro-batch, and keep what it adds up"
    wanted, got = (torch.cat([p.grad.flatten() for p in side]) for side in zip(*pairs, strict=True))
    if torch.allclose(got, 3 * wanted, atol=1e-5):
        return "the gradients are 3 times too large for 3 micro-batches: each loss is a mean, and means do not add up"
    if not torch.allclose(got, wanted, atol=1e-5):
        return "the gradients are not those of the large batch: does every micro-batch count, and with the same weight?"
    return None


@_exercise
def check_02_3(answer: Callable[[nn.Module], Any]) -> str | None:
    """A function of a classifier that leaves only its head to train and makes the body a fixed function."""
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
