"""One step of a classifier, in the state it has in the middle of a run (notebook 02)."""

import copy
from collections.abc import Callable
from typing import Literal

from helpers.models import inspection
from helpers.recipes.training_memory import (
    add_adapters,
    check_gradients,
    checkpoint_layers,
    freeze_part,
)

import torch
from torch.nn import Module
from transformers import AutoModelForSequenceClassification


class Step:
    """One step of a BERT-family model with a head; the optimizer's state exists already."""

    def __init__(
        self,
        config,
        batch: int,
        length: int,
        *,
        mode: Literal["training", "inference"] = "training",
        optimizer: Literal["adamw", "sgd"] = "adamw",
        accumulate: int = 1,
        mixed_precision: bool = False,
        padded: bool = True,
        device: str = "cpu",
        **options,
    ):
        """Build a model from a transformers config, with its optimizer and inputs.

        `batch` texts of `length` tokens are a micro-batch, and `accumulate` of these one step.
        Mixed precision is autocast to bfloat16 over float32 weights. With padding, attention needs
        a mask. The other options are those of `build_model`.

        Raises:
            ValueError: For what would measure something else than it says.
        """
        if mode not in ("training", "inference") or min(batch, length, accumulate) < 1:
            raise ValueError(f"{mode} of {batch} x {length}, {accumulate} times, is not a step")
        self.model = build_model(config, mode == "training", device, **options)
        limit = inspection.max_input_length(self.model)
        if length > limit:
            raise ValueError(f"length is at most {limit} for this model, not {length}")
        self.accumulate = accumulate
        self.autocast = torch.autocast(device, torch.bfloat16, enabled=mixed_precision)
        ids = torch.ones(batch, length, dtype=torch.long, device=device)
        self.inputs = {"input_ids": ids, "labels": torch.zeros_like(ids[:, 0])}
        if padded and length > 1:
            self.inputs["attention_mask"] = torch.ones_like(ids)
            self.inputs["attention_mask"][0, -1] = 0
        self.optimizer = None
        if mode == "training":
            self.optimizer = build_optimizer(self.model, optimizer)

    def run(self, mark: Callable[[str], None] = lambda phase: None) -> None:
        """Run it, and tell `mark` the name of every phase as it begins.

        Raises:
            RuntimeError: If gradients are missing.
        """
        if self.optimizer is None:
            mark("forward pass")
            with torch.no_grad(), self.autocast:
                self.model(**self.inputs)
            return
        # The memory of a third micro-batch is that of the second.
        for _ in range(min(self.accumulate, 2)):
            mark("forward pass")
            with self.autocast:
                loss = self.model(**self.inputs).loss / self.accumulate
            mark("backward pass")
            loss.backward()
            del loss
        check_gradients(self.model)
        mark("optimizer step")
        self.optimizer.step()
        self.optimizer.zero_grad()


def build_model(
    config,
    training: bool,
    device: str,
    *,
    freeze: str | int | None = None,
    checkpointing: bool = False,
    lora: int | None = None,
    dtype: str | torch.dtype = "float32",
    attention: Literal["sdpa", "eager"] | None = None,
) -> Module:
    """Build a model with a head, and with what saves memory.

    Args:
        config: A transformers config.
        training: Whether it is in training mode.
        device: Where it is.
        freeze: See `freeze_part`.
        checkpointing: Gradient checkpointing in every layer.
        lora: Rank of adapters on all linear layers. Over 16-bit weights peft keeps them in
            float32, and each keeps a float32 copy of its input for the backward pass.
        dtype: Of the weights.
        attention: The implementation; by default sdpa, or eager in families that lack it.
    """
    config = copy.deepcopy(config)
    config.use_cache, config.problem_type = False, None  # the kind of loss makes no difference
    dtype = getattr(torch, str(dtype).removeprefix("torch."))
    build = AutoModelForSequenceClassification.from_config
    model = build(config, dtype=dtype, attn_implementation=attention).to(device).train(training)
    if checkpointing:
        checkpoint_layers(model)
    if lora:
        model = add_adapters(model, lora)
    if freeze is not None:
        freeze_part(model, freeze)
    return model


def build_optimizer(model: Module, name: str) -> torch.optim.Optimizer:
    """Build an optimizer with the state that it makes for itself in its first step."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[name](trained, lr=1e-5)
    if name == "adamw":
        for parameter in trained:
            moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            optimizer.state[parameter] = {"step": torch.tensor(0.0), **moments}
    return optimizer
