"""One step of a classifier, as it is in the middle of a run."""

import copy
import math
from collections.abc import Callable
from numbers import Integral

import torch
from peft import LoraConfig, get_peft_model
from torch.nn import Module
from transformers import AutoModelForSequenceClassification


def freeze_part(model: Module, part: str | int) -> None:
    """Take a part out of training: no gradients, no optimizer state, no dropout.

    Call it after `model.train()`.

    part: "body" (all but the head), "embeddings", or n: the embeddings and the first n layers. Else
    ValueError.
    """
    body = model.base_model
    layers = getattr(getattr(body, "encoder", getattr(body, "transformer", None)), "layer", None)
    if part != "body" and layers is None:
        raise ValueError(
            f"{type(body).__name__} has no list of layers of its own: it can be frozen as a whole only"
        )
    count = 0 if part == "embeddings" else part
    if part != "body" and (
        isinstance(count, bool) or not isinstance(count, Integral) or not 0 <= count <= len(layers)
    ):
        raise ValueError(
            f'freeze takes "body", "embeddings" or 0 to {len(layers)} layers, not {part!r}'
        )
    for module in [body] if part == "body" else [body.embeddings, *layers[:count]]:
        module.requires_grad_(False).eval()


def check_gradients(model: Module) -> None:
    """After a backward pass.

    Raise RuntimeError if a parameter that should be trained got no gradient.
    """
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise RuntimeError("no parameter is trainable: all have requires_grad=False")
    missing = [name for name, p in trainable.items() if p.grad is None]
    if len(missing) == len(trainable):
        raise RuntimeError(
            "no parameter has a gradient: call this after loss.backward(), before zero_grad()"
        )
    if missing:
        raise RuntimeError(
            f"{len(missing)} of {len(trainable)} trainable parameters got no gradient ({', '.join(missing[:3])}, ...): "
            "they would never be trained. The usual cause is reentrant gradient checkpointing above frozen layers: "
            "switch it on with use_reentrant=False"
        )


class Step:
    """One step of a BERT-family classifier, in the state it has in the middle of a run (the optimizer's state exists).

    config: a transformers config. batch, length: of one micro-batch. mode: "training" or
        "inference".
    optimizer: "adamw" or "sgd". freeze: see `freeze_part`. checkpointing: gradient checkpointing in
        every layer.
    accumulate: micro-batches for one optimizer step. lora: rank of adapters on all linear layers
        (peft), or None; over 16-bit weights peft keeps them in float32, and each keeps a float32
        copy of its input for the backward pass.
    dtype: of the weights. mixed_precision: bfloat16 autocast over float32 weights. attention:
        "sdpa" or "eager".
    padded: whether the batch has padding (attention then needs a mask). Raises ValueError for what
        makes no sense.
    """

    def __init__(
        self, config, batch: int, length: int, *, mode: str = "training", optimizer: str = "adamw",
        freeze: str | int | None = None, checkpointing: bool = False, accumulate: int = 1, lora: int | None = None,
        dtype: str = "float32", mixed_precision: bool = False, attention: str = "sdpa", padded: bool = True,
        device: str = "cpu",
    ):  # fmt: skip
        if isinstance(config, type) or not hasattr(config, "max_position_embeddings"):
            raise ValueError(
                f"a {type(config).__name__} is not the config of a BERT-like model; of a model take model.config"
            )
        limit = config.max_position_embeddings - (2 if "roberta" in config.model_type else 0)
        for name, value, most in (
            ("batch", batch, math.inf), ("length", length, limit), ("accumulate", accumulate, math.inf),
            ("lora", 1 if lora is None else lora, config.hidden_size),
        ):  # fmt: skip
            if isinstance(value, bool) or not isinstance(value, Integral) or not 1 <= value <= most:
                raise ValueError(
                    f"{name} has to be a whole number from 1{f' to {most}' * (most < math.inf)}, not {value!r}"
                )
        dtype = str(dtype).removeprefix("torch.")
        for name, value, allowed in (
            ("mode", mode, ("training", "inference")), ("optimizer", optimizer, ("adamw", "sgd")),
            ("attention", attention, ("sdpa", "eager")), ("dtype", dtype, ("float32", "bfloat16", "float16")),
            ("checkpointing", checkpointing, (False, True)), ("padded", padded, (False, True)),
            ("mixed_precision", mixed_precision, (False, True)),
        ):  # fmt: skip
            if value not in allowed:
                raise ValueError(
                    f"{name} has to be one of {', '.join(map(str, allowed))}, not {value!r}"
                )
        if mixed_precision and dtype != "float32":
            raise ValueError(
                "mixed precision keeps float32 weights: give either mixed_precision or a 16-bit dtype"
            )
        if lora and freeze is not None:
            raise ValueError("LoRA freezes every layer by itself: give either lora or freeze")
        config = copy.deepcopy(config)
        config.use_cache, config.problem_type = False, None  # the kind of loss makes no difference
        self.model = AutoModelForSequenceClassification.from_config(
            config, dtype=getattr(torch, dtype), attn_implementation=attention
        ).to(device)
        if not hasattr(self.model.base_model, "embeddings"):
            raise ValueError(f"{type(self.model).__name__} is not a model of the BERT family")
        self.model.train(mode == "training")
        if checkpointing:
            old_name = "gradient_checkpointing_enable"
            getattr(self.model, "activation_checkpointing_enable", getattr(self.model, old_name))()
        if lora:
            head = ["pre_classifier"]  # DistilBERT's: peft trains it whole, as it does every head
            adapters = LoraConfig(
                task_type="SEQ_CLS", r=lora, target_modules="all-linear", exclude_modules=head
            )
            self.model = get_peft_model(self.model, adapters)
        if freeze is not None:
            freeze_part(self.model, freeze)
        # The memory of a third micro-batch is that of the second.
        self.accumulate, self.passes = accumulate, min(accumulate, 2) if mode == "training" else 1
        self.autocast = torch.autocast(device, torch.bfloat16, enabled=mixed_precision)
        ids = torch.ones(batch, length, dtype=torch.long, device=device)
        self.inputs = {
            "input_ids": ids,
            "labels": torch.zeros(batch, dtype=torch.long, device=device),
        }
        if padded and length > 1:
            self.inputs["attention_mask"] = torch.ones_like(ids)
            self.inputs["attention_mask"][0, -1] = 0
        self.optimizer = None
        if mode == "training":
            trained = [p for p in self.model.parameters() if p.requires_grad]
            self.optimizer = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[optimizer](
                trained, lr=1e-5
            )
            for p in (
                trained if optimizer == "adamw" else ()
            ):  # what AdamW makes for itself in its first step
                moments = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
                self.optimizer.state[p] = {"step": torch.tensor(0.0), **moments}

    def run(self, mark: Callable[[str], None] = lambda phase: None) -> None:
        """Run it; `mark` is told the name of every phase as it begins.

        Raises RuntimeError if gradients are missing.
        """
        if self.optimizer is None:
            mark("forward pass")
            with torch.no_grad(), self.autocast:
                self.model(**self.inputs)
            return
        for _ in range(self.passes):
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
