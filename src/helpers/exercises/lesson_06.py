"""Checks for the exercises of notebook 06 (distillation)."""

from collections.abc import Callable, Sequence

from helpers.exercises import exercise
from helpers.lessons import distillation

import torch
from torch.nn import functional


@exercise
def check_06_1(
    answer: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor],
) -> str | None:
    """A function (student, teacher, mask, temperature).

    The soft loss of token logits, averaged over real tokens.
    """
    torch.manual_seed(0)
    student, teacher = (2 * torch.randn(3, 6, 5)).requires_grad_(), 2 * torch.randn(3, 6, 5)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0]])
    right = distillation.distillation_loss(
        student.detach(), teacher, temperature=2.0, mask=mask
    ).item()
    result = answer(student, teacher, mask, 2.0)
    if not isinstance(result, torch.Tensor) or result.dim() != 0:
        found = getattr(result, "shape", type(result).__name__)
        return f"it should return one number as a tensor, not {found}"
    value = float(result.detach())
    logs = (functional.log_softmax(logits.detach() / 2, dim=-1) for logits in (student, teacher))
    everywhere = 4 * float(functional.kl_div(*logs, reduction="sum", log_target=True))
    faults = {
        right / 4: "the factor T² is missing",
        right / 5: "it is divided by the number of classes as well",
        right * mask.sum().item() / 3: "it is divided by the number of texts, not of real tokens",
        right * mask.sum().item() / 18: "the sum is divided by all tokens, padding included",
        right * mask.sum().item(): "it is a sum, not an average",
        everywhere / 18: "padding counts like a real token",
        everywhere / 3: 'padding counts, and "batchmean" divides token logits by texts',
        everywhere / mask.sum().item(): "padding is in the sum, though not in the divisor",
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
def check_06_2(
    answer: Callable[[Sequence[int], Sequence[int], torch.Tensor], torch.Tensor],
) -> str | None:
    """A function (batch_ids, ids, logits).

    The teacher's rows for a shuffled batch; logits[i] belongs to ids[i].
    """
    ids, logits = [40, 7, 300, 12], torch.tensor([[4.0, 0.0], [0.7, 0.0], [30.0, 0.0], [1.2, 0.0]])
    result = answer([300, 7, 300], ids, logits)
    if not isinstance(result, torch.Tensor) or result.shape != (3, 2):
        found = getattr(result, "shape", type(result).__name__)
        return f"three ids need a tensor of shape (3, 2), not {found}"
    if torch.equal(result, logits[:3]):
        return "these are the first rows, whatever was asked for: look the ids up"
    if not torch.equal(result, logits[[2, 1, 2]]):
        rows = [ids[i] for i in _rows(result, logits)]
        return f"for the ids 300, 7, 300 it gives the rows of {rows}"
    try:
        answer([5], ids, logits)
    except (KeyError, ValueError, IndexError):
        return None
    return "an id that was never kept gets some row, without an error"


def _rows(result: torch.Tensor, logits: torch.Tensor) -> list[int]:
    """The row of `logits` that is closest to each row of `result`."""
    return torch.cdist(result.float(), logits).argmin(dim=1).tolist()


@exercise
def check_06_3(answer: Callable[[str, Sequence[int]], str]) -> str | None:
    """A function (name, layers): where in the teacher the student's tensor comes from."""
    layers, layer = (1, 10, 4), "bert.encoder.layer"
    cases = {
        "bert.encoder.layer.0.output.dense.bias": "bert.encoder.layer.1.output.dense.bias",
        f"{layer}.1.attention.self.key.weight": f"{layer}.10.attention.self.key.weight",
        f"{layer}.2.intermediate.dense.weight": f"{layer}.4.intermediate.dense.weight",
        "bert.embeddings.word_embeddings.weight": "bert.embeddings.word_embeddings.weight",
        "classifier.weight": "classifier.weight",
    }
    for name, right in cases.items():
        if (found := answer(name, layers)) != right:
            return f"with the layers {layers}, {name} comes from {right}, not {found}"
    if (
        answer("bert.encoder.layer.11.output.dense.bias", range(11, -1, -1))
        != "bert.encoder.layer.0.output.dense.bias"
    ):
        return "layer 11 is taken for another: read the whole number"
    return None
