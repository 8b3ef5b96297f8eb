"""The training loop behind distillation: its batches have little padding."""

from collections.abc import Callable, Iterable

from helpers.core.progress import progress_bar
from helpers.models import batching, inspection

import torch
from torch import nn
from transformers import get_linear_schedule_with_warmup


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
) -> list[float]:
    """Train what is trainable in a classifier as the recipe does; return each step's loss.

    `loss` gets logits (batch, labels) and the rows (batch,) of their texts, so that targets belong
    to the batch, however it was shuffled; a loss that is not finite ends the training. The model
    is in eval mode at the end in any case.
    """
    limit = min(batching.MAX_LENGTH, inspection.max_input_length(model))
    encoded, lengths = batching.encode(tokenizer, texts, limit)
    torch.manual_seed(seed)  # dropout
    batches = shuffled_batches(lengths, batch_size, epochs, seed)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=lr, weight_decay=0.01)
    schedule = get_linear_schedule_with_warmup(optimizer, int(0.06 * len(batches)), len(batches))
    history = []
    model.train()
    try:
        with progress_bar(len(batches), unit="step") as bar:
            for step, rows in enumerate(batches, 1):
                value = loss(inspection.logits(model, tokenizer, encoded, rows), torch.tensor(rows))
                if not value.isfinite():
                    raise FloatingPointError(f"the loss of step {step} is {float(value)}")
                optimizer.zero_grad()
                value.backward()
                nn.utils.clip_grad_norm_(trained, 1.0)
                optimizer.step()
                schedule.step()
                history.append(value.item())
                bar.update()
    finally:
        model.eval()
    return history


def shuffled_batches(
    lengths: list[int], batch_size: int, epochs: int, seed: int
) -> list[list[int]]:
    """Return all rows once an epoch, in random order, in batches of texts of like length."""
    generator, shuffled = torch.Generator().manual_seed(seed), []
    for _ in range(epochs):
        groups = []
        for pool in torch.randperm(len(lengths), generator=generator).split(32 * batch_size):
            rows = sorted(pool.tolist(), key=lengths.__getitem__)
            groups += [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]
        order = torch.randperm(len(groups), generator=generator).tolist()
        shuffled += [groups[place] for place in order]
    return shuffled
