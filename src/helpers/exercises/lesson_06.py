"""Checks for the exercises of notebook 06 (distillation)."""

from collections.abc import Callable

from helpers.exercises import exercise
from helpers.lessons import distillation

import torch
from torch.nn import functional


def _shape(result: object) -> object:
    return getattr(result, "shape", type(result).__name__)


@exercise
def check_06_1(answer: Callable[..., torch.Tensor]) -> str | None:
    """Check a soft loss (student, teacher, mask, temperature), averaged over real tokens."""
    torch.manual_seed(0)
    student, teacher = (2 * torch.randn(3, 6, 5)).requires_grad_(), 2 * torch.randn(3, 6, 5)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0]])
    right = distillation.distillation_loss(student, teacher, temperature=2.0, mask=mask).item()
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
def check_06_2(answer: Callable[..., torch.Tensor]) -> str | None:
    """Check a function (batch_ids, ids, logits): the teacher's rows; logits[i] is of ids[i]."""
    ids, logits = [40, 7, 300, 12], torch.tensor([[4.0, 0.0], [0.7, 0.0], [30.0, 0.0], [1.2, 0.0]])
    result = answer([300, 7, 300], ids, logits)
    if not isinstance(result, torch.Tensor) or result.shape != (3, 2):
        return f"three ids need a tensor of shape (3, 2), not {_shape(result)}"
    if torch.equal(result, logits[:3]):
        return "these are the first rows, whatever was asked for: look the ids up"
    if not torch.equal(result, logits[[2, 1, 2]]):
        nearest = torch.cdist(result.float(), logits).argmin(dim=1).tolist()
        return f"for the ids 300, 7, 300 it gives the rows of {[ids[row] for row in nearest]}"
    try:
        answer([5], ids, logits)
    except (KeyError, ValueError, IndexError):
        return None
    return "an id that was never kept gets some row, without an error"
