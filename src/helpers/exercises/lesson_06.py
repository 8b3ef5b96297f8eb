"""Checks for the exercises of notebook 06 (distillation)."""

from collections.abc import Callable

from helpers.exercises import exercise
from helpers.recipes import distill

import torch
from torch import nn
from torch.nn import functional


def _shape(result: object) -> object:
    return getattr(result, "shape", type(result).__name__)


@exercise
def check_06_1(answer: Callable[..., torch.Tensor]) -> str | None:
    """Check a soft loss (student, teacher, mask, temperature), averaged over real tokens."""
    torch.manual_seed(0)
    student, teacher = (2 * torch.randn(3, 6, 5)).requires_grad_(), 2 * torch.randn(3, 6, 5)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0]])
    real = mask.bool()
    right = distill.soft_loss(student[real], teacher[real], 2.0).item()
    result = answer(student, teacher, mask, 2.0)
    if not isinstance(result, torch.Tensor) or result.dim() != 0:
        return f"it should return one number as a tensor, not {_shape(result)}"
    value, real = result.item(), mask.sum().item()
    logs = (functional.log_softmax(logits.detach() / 2, dim=-1) for logits in (student, teacher))
    everywhere = 4 * float(functional.kl_div(*logs, reduction="sum", log_target=True))
    faults = {
        right / 4: "the factor T² is missing",
        right / 5: "it is divided by the number of classes as well",
        right * real / 3: "it is divided by the number of texts, not of real tokens",
        right * real / 18: "the sum is divided by all tokens, padding included",
        right * real: "it is a sum, not an average",
        everywhere / 18: "padding counts like a real token",
        everywhere / 3: 'padding counts, and "batchmean" divides token logits by texts',
        everywhere / real: "padding is in the sum, though not in the divisor",
    }
    for wrong, words in faults.items():
        if abs(value - wrong) < 1e-4 * abs(wrong) and abs(value - right) > 1e-4 * right:
            return words
    if not abs(value - right) <= 1e-4 * right:  # NaN, too
        return f"for one example it gives {value:.4f}, and the formula {right:.4f}"
    if not result.requires_grad:
        return "the value is right, but no gradient flows back to the student"
    return None


@exercise
def check_06_2(answer: nn.Module, accuracy: Callable[[nn.Module], float]) -> str | None:
    """Check a trained student of two layers; `accuracy` tests it on snippets it has not seen."""
    layers = len(answer.bert.encoder.layer)
    if layers != 2:
        return f"it has {layers} layers: keep two"
    if answer.training:
        return "it is in training mode, where dropout makes its answers random: call eval()"
    found = accuracy(answer)
    if not found >= 0.7:
        return f"{found:.1%} right, 70 % are asked for: train longer, or with another layer"
    return None
