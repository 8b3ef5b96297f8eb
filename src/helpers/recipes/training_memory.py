"""Train in less GPU memory: accumulate, freeze, checkpoint, adapt, and measure (notebook 02).

python training_memory.py MODEL_FOLDER --batch 32 --accumulate 4 --checkpointing --bf16
"""

import argparse
import functools
from collections.abc import Callable

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModelForSequenceClassification


def training_step(model, batch, optimizer, accumulate=1, dtype=None) -> float:
    """Take one optimizer step on a batch (tensors by name), in parts, and return its loss.

    Each part's loss counts for its share of the labels (-100: none), so the gradient is that of the
    whole batch, and only one part's activations are in memory at a time. A dtype is for autocast.
    """
    counted, total = (batch["labels"] != -100) | batch["labels"].is_floating_point(), 0.0
    for part in torch.arange(len(counted), device=counted.device).chunk(accumulate):
        share = (counted[part].sum() / counted.sum()).item()
        if share == 0:
            continue  # the loss would be a mean of nothing
        with torch.autocast(counted.device.type, dtype, enabled=dtype is not None):
            loss = model(**{name: value[part] for name, value in batch.items()}).loss
        (loss * share).backward()
        total += loss.item() * share
    check_gradients(model)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return total


def check_gradients(model: nn.Module) -> None:
    """Raise RuntimeError if a parameter that should be trained got no gradient."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    missing = [name for name, parameter in trained.items() if parameter.grad is None]
    if missing or not trained:
        raise RuntimeError(f"no gradient for {missing[:3] or 'any parameter'}: it is not trained")


def freeze_part(model: nn.Module, part: str | int = "body") -> None:
    """Take a part out of training: no gradients, no optimizer state, no dropout.

    Call it after `train()`. A part is "body" (all but the head), or n: the embeddings and n layers.
    """
    body = model.base_model
    if part == "body":
        body.requires_grad_(False).eval()
        return
    inner = getattr(body, "encoder", getattr(body, "transformer", body))
    layers = getattr(inner, "layer", None) or inner.layers
    if type(part) is not int or not 0 <= part <= len(layers):
        raise ValueError(f'freeze takes "body" or 0 to {len(layers)} layers, not {part}')
    for module in [body.embeddings, *layers[:part]]:
        module.requires_grad_(False).eval()


def checkpoint_layers(model: nn.Module) -> None:
    """Keep no activations inside layers; the backward pass computes them again."""
    enable = getattr(model, "activation_checkpointing_enable", None)  # not in transformers 5.17
    (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})


def add_adapters(model: nn.Module, rank: int = 8, targets: str | list = "all-linear") -> nn.Module:
    """Return the model with LoRA adapters on linear layers; only they and the head train."""
    options = {"target_modules": targets, "exclude_modules": ["pre_classifier"]}  # a head
    return get_peft_model(model, LoraConfig(task_type="SEQ_CLS", r=rank, **options))


def measure_peak(function: Callable[[], object], device: torch.device) -> int:
    """Return the peak of what PyTorch allocates for a call; on CUDA with what was there before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        function()
        return torch.cuda.max_memory_allocated(device)
    with torch.profiler.profile(profile_memory=True) as profile:
        function()
    now = peak = 0
    events = profile.profiler.kineto_results.events()
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes() if event.name() == "[memory]" else 0
        peak = max(peak, now)
    return peak


def prepare(folder: str, given: argparse.Namespace, device: torch.device) -> nn.Module:
    """Load a classifier and switch on what saves memory."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).float().to(device).train()
    if given.lora:
        model = add_adapters(model, given.lora)
    if given.freeze:
        freeze_part(model)
    if given.checkpointing:
        checkpoint_layers(model)
    return model


def main(argv: list[str] | None = None) -> None:
    """Run one real training step and print its memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="a model folder, or a name on the Hugging Face hub")
    for name, default in (("batch", 8), ("length", 128), ("accumulate", 1), ("lora", 0)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default: {default}")
    for name in ("checkpointing", "freeze", "bf16"):
        parser.add_argument(f"--{name}", action="store_true")
    given = parser.parse_args(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = prepare(given.folder, given, device)
    ids = torch.randint(5, model.config.vocab_size, (given.batch, given.length), device=device)
    batch = {"input_ids": ids, "labels": torch.zeros(given.batch, dtype=torch.long, device=device)}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)
    dtype = torch.bfloat16 if given.bf16 else None
    step = functools.partial(training_step, model, batch, optimizer, given.accumulate, dtype)
    step()  # makes the optimizer's state
    peak = measure_peak(step, device)
    weights, grads = (sum(p.nbytes for p in ps) / 2**20 for ps in (model.parameters(), trained))
    print(f"weights {weights:.1f} MiB, gradients {grads:.1f} MiB, AdamW {2 * grads:.1f} MiB")
    whole = "everything included" if device.type == "cuda" else "on top of weights and AdamW"
    print(f"peak {peak / 2**20:.1f} MiB on {device.type}, {whole}")


if __name__ == "__main__":
    main()
