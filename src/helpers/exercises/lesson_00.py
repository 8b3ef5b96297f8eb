"""Checks for the exercises of notebook 00 (start here)."""

from collections.abc import Callable

from helpers.exercises import exercise

import torch


@exercise
def check_00_1(
    answer: tuple[str, str], classify: Callable[[list[str]], torch.Tensor]
) -> str | None:
    """A sentence of three words or more and its true label, which `classify` gets wrong."""
    pair = isinstance(answer, tuple | list) and len(answer) == 2
    if not pair or answer[1] not in ("positive", "negative") or len(answer[0].split()) < 3:
        return 'the answer is a pair: (a sentence of three words or more, "positive" or "negative")'
    sentence, label = answer
    chance = float(classify([sentence])[0])
    if (chance > 0.5) == (label == "positive"):
        return (
            f"the classifier agrees with you: P(positive) = {chance:.2f}. "
            "Try negation, irony or faint praise"
        )
    return None


@exercise
def check_00_2(answer: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> str | None:
    """A function (hidden, mask) of the largest value over the real tokens: (texts, width)."""
    hidden = -1 - torch.rand(2, 5, 3, generator=torch.Generator().manual_seed(0))  # all negative
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    hidden[0, 3:] = -0.5  # larger than every real token of the first text
    before = hidden.clone()
    result = answer(hidden, mask)
    if hasattr(result, "indices") and not isinstance(result, torch.Tensor):
        return ".max(dim=1) gives values and positions: use .amax(dim=1), or .values of it"
    shape = getattr(result, "shape", type(result).__name__)
    if shape != (2, 3):
        return f"the result should be a tensor of shape (2, 3), not {shape}"
    if torch.equal(result[0], torch.zeros(3)):
        return "padding set to 0 wins when all real values are negative"
    if torch.equal(result[0], before[0].amax(dim=0)):
        return "padding wins: the mask was not used"
    if not torch.allclose(result, torch.stack([before[0, :3].amax(dim=0), before[1].amax(dim=0)])):
        return "the values are not the largest over the real tokens"
    if not torch.equal(hidden, before):
        return "the result is right, but the caller's tensor was changed on the way"
    return None
