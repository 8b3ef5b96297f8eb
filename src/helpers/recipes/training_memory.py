"""Train in less GPU memory: accumulate, freeze, checkpoint, adapt, and measure (notebook 02).

python training_memory.py MODEL_FOLDER --batch 32 --accumulate 4 --checkpointing
"""

import argparse
from collections.abc import Callable, Mapping

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModelForSequenceClassification


def training_step(
    model: nn.Module,
    batch: Mapping[str, torch.Tensor],
    optimizer: torch.optim.Optimizer,
    accumulate: int = 1,
) -> float:
    """Take one optimizer step on a batch, in `accumulate` parts, and return the batch's loss.

    Each part's loss counts for its share of the rows, so the gradient is that of the whole batch,
    and only one part's activations are in memory at a time.
    """
    rows, total = len(batch["labels"]), 0.0
    for part in torch.arange(rows, device=batch["labels"].device).chunk(accumulate):
        loss = model(**{name: value[part] for name, value in batch.items()}).loss * len(part) / rows
        loss.backward()
        total += loss.item()
    check_gradients(model)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return total


def check_gradients(model: nn.Module) -> None:
    """Raise RuntimeError if a parameter that should be trained got no gradient.

    The usual cause is reentrant checkpointing above frozen layers: nothing is trained.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    missing = [name for name, parameter in trained.items() if parameter.grad is None]
    if missing or not trained:
        raise RuntimeError(f"no gradient for {missing[:3] or 'any parameter'}: it is not trained")


def freeze_body(model: nn.Module) -> None:
    """Train the head only: no gradients and no dropout below it. Call it after `train()`."""
    model.base_model.requires_grad_(False).eval()


def checkpoint_layers(model: nn.Module) -> None:
    """Keep no activations inside layers; the backward pass computes them again."""
    enable = getattr(model, "activation_checkpointing_enable", None)  # not in transformers 5.17
    (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})


def add_adapters(model: nn.Module, rank: int = 8) -> nn.Module:
    """Return the model with LoRA adapters on all linear layers; only they and the head train."""
    options = {"target_modules": "all-linear", "exclude_modules": ["pre_classifier"]}  # a head
    return get_peft_model(model, LoraConfig(task_type="SEQ_CLS", r=rank, **options))


def measure_peak(function: Callable[[], object], device: torch.device) -> int:
    """Run a function and return the peak of what PyTorch allocated for it on a device, in bytes.

    On CUDA that includes what was there before; on the CPU it is what the call added.
    """
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
    model = AutoModelForSequenceClassification.from_pretrained(folder).to(device).train()
    if given.lora:
        model = add_adapters(model, given.lora)
    if given.freeze:
        freeze_body(model)
    if given.checkpointing:
        checkpoint_layers(model)
    return model


def main(argv: list[str] | None = None) -> None:
    """Run one real training step and print its memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="a model folder, or a name on the Hugging Face hub")
    for name, default in (("batch", 8), ("length", 128), ("accumulate", 1), ("lora", 0)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default: {default}")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--freeze", action="store_true", help="train the head only")
    given = parser.parse_args(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = prepare(given.folder, given, device)
    ids = torch.randint(5, model.config.vocab_size, (given.batch, given.length), device=device)
    batch = {"input_ids": ids, "labels": torch.zeros(given.batch, dtype=torch.long, device=device)}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5)
    training_step(model, batch, optimizer, given.accumulate)  # makes the optimizer's state
    peak = measure_peak(lambda: training_step(model, batch, optimizer, given.accumulate), device)
    weights, grads = (sum(p.nbytes for p in ps) / 2**20 for ps in (model.parameters(), trained))
    print(f"weights {weights:.1f} MiB, gradients {grads:.1f} MiB, AdamW {2 * grads:.1f} MiB")
    whole = "everything included" if device.type == "cuda" else "on top of weights and AdamW"
    print(f"peak {peak / 2**20:.1f} MiB on {device.type}, {whole}")


if __name__ == "__main__":
    main()
