"""The training loop behind distillation: resumable, with its batches and its schedule."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from helpers.core import files, tensors
from helpers.models import batching, inspection

import torch
from huggingface_hub.utils import are_progress_bars_disabled
from torch import nn
from tqdm.auto import tqdm

KEEP_EVERY = 200  # steps after which a training keeps its state, if it has a file for it


_POOL = 32  # batches are cut from so many batches' worth of texts, sorted by length


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that a training changes.

    Raises:
        ValueError: If there is none, or the model holds int8 weights, which get no gradient.
    """
    found = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not found:
        raise ValueError("no parameter is trainable: call requires_grad_(True) on what is to learn")
    if inspection.is_int8(model) and not any("lora_" in name for name in found):
        raise ValueError("int8 weights get no gradient: train the float model, then quantize it")
    return list(found.values())


def train(
    model: nn.Module,
    tokenizer,
    texts: Iterable[str],
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    *,
    epochs: int = 1,
    lr: float = 2e-4,
    batch_size: int = 32,
    seed: int = 0,
    after_step: Callable[[int, float], None] | None = None,
    checkpoint: Path | None = None,
    goal: object = None,
    quiet: bool | None = None,
) -> list[float]:
    """Train a classifier with AdamW, warm-up over 6 % of the steps and a linear decay.

    Args:
        model: Its trainable parameters change; it is in eval mode at the end, come what may.
        tokenizer: Cuts texts at 128 tokens, or at what the model reads.
        texts: To train on.
        loss: Gets logits (batch, labels) and the rows of their texts, (batch,), so that targets
            kept by row belong to the batch, however it was shuffled.
        epochs: How often each text is seen.
        lr: The learning rate.
        batch_size: Texts in a batch.
        seed: Of the order and of dropout.
        after_step: Gets the step's number and its loss.
        checkpoint: A file that keeps the state every `KEEP_EVERY` steps; the same call goes on
            from there after an interruption, on a CPU exactly.
        goal: Stands for what the loss compares with, so that another training is noticed.
        quiet: Show no progress bar.

    Returns:
        The loss of every step.

    Raises:
        ValueError: If another training left the checkpoint.
        FloatingPointError: If the loss is not finite.
    """
    trained = trainable(model)
    limit = min(batching.MAX_LENGTH, inspection.max_input_length(model))
    encoded, lengths = batching.encode(tokenizer, texts, limit)
    torch.manual_seed(seed)  # dropout
    batches = list(shuffled_batches(lengths, batch_size, epochs, seed))
    optimizer = torch.optim.AdamW(trained, lr=lr, weight_decay=0.01)
    schedule = warmed_up(optimizer, len(batches))
    parts = {"optimizer": optimizer, "schedule": schedule, "model": model}
    plan = (goal, epochs, lr, batch_size, seed, encoded, tensors.digest(trained))
    plan = hashlib.sha256(repr(plan).encode()).hexdigest()
    history = resume(checkpoint, plan, parts) if checkpoint else []
    quiet = are_progress_bars_disabled() if quiet is None else quiet
    bar = tqdm(
        total=len(batches), initial=len(history), disable=quiet, desc="training", leave=False
    )
    model.train()
    try:
        for rows in batches[len(history) :]:
            value = loss(inspection.logits(model, tokenizer, encoded, rows), torch.tensor(rows))
            if not value.isfinite():
                raise FloatingPointError(f"the loss of step {len(history) + 1} is {float(value)}")
            optimizer.zero_grad()
            value.backward()
            nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            schedule.step()
            history.append(float(value.detach()))
            bar.update()
            if after_step:
                after_step(len(history), history[-1])
            if checkpoint and len(history) % KEEP_EVERY == 0:
                keep(checkpoint, plan, parts, history)
    finally:
        bar.close()
        model.eval()
    return history


def warmed_up(optimizer: torch.optim.Optimizer, steps: int):
    """Return a schedule that rises over the first 6 % of the steps and falls to 0 at the end."""
    warmup = max(1, round(0.06 * steps))

    def factor(step: int) -> float:
        return min((step + 1) / warmup, (steps - step) / max(1, steps - warmup))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def shuffled_batches(
    lengths: list[int], batch_size: int, epochs: int, seed: int
) -> Iterator[list[int]]:
    """Yield all rows once an epoch, in random order, in batches of texts of like length."""
    generator = torch.Generator().manual_seed(seed)
    pool = _POOL * batch_size
    for _ in range(epochs):
        order = torch.randperm(len(lengths), generator=generator).tolist()
        groups = []
        for start in range(0, len(order), pool):
            rows = sorted(order[start : start + pool], key=lengths.__getitem__)
            groups += [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]
        for place in torch.randperm(len(groups), generator=generator).tolist():
            yield groups[place]


def keep(checkpoint: Path, plan: str, parts: dict, history: list[float]) -> None:
    """Write the state of a training in one step."""
    state = {name: part.state_dict() for name, part in parts.items()}
    state |= {"plan": plan, "history": history, "dropout": torch.get_rng_state()}
    Path(checkpoint).parent.mkdir(parents=True, exist_ok=True)
    with files.atomic_write(checkpoint) as part:
        torch.save(state, part)


def resume(checkpoint: Path, plan: str, parts: dict) -> list[float]:
    """Read the state of a training, if it was interrupted; returns the losses so far."""
    if not Path(checkpoint).exists():
        return []
    saved = torch.load(checkpoint, weights_only=True, map_location="cpu")
    if saved["plan"] != plan:
        message = "was left by another training: repeat its settings, or remove the file"
        raise ValueError(f"{checkpoint} {message}")
    for name, part in parts.items():
        part.load_state_dict(saved[name])
    torch.set_rng_state(saved["dropout"])
    return saved["history"]
