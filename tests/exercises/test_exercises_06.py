"""Exercises of notebook 06: each mistake is named, right answers are right."""

from helpers import exercises
from helpers.lessons import distillation

import pytest
import torch
from torch.nn import functional


def token_loss(factor=True, reduction="batchmean", select=True, divisor=None):
    """Variants of the loss for tokens, right by default."""

    def loss(student, teacher, mask, temperature):
        divide = {
            None: 1,
            "texts": mask.sum() / len(mask),
            "all": mask.sum() / mask.numel(),
            "real": 1 / mask.sum(),
        }
        real = mask.bool() if select else torch.ones_like(mask).bool()
        logs = ((logits[real] / temperature).log_softmax(dim=-1) for logits in (student, teacher))
        value = functional.kl_div(*logs, reduction=reduction, log_target=True) * divide[divisor]
        return value * (temperature**2 if factor else 1)

    return loss


def test_1_the_formula_is_correct(said):
    assert said(exercises.check_06_1, token_loss()) == "correct"

    def whole(student, teacher, mask, temperature):
        return distillation.distillation_loss(student, teacher, temperature=temperature, mask=mask)

    assert said(exercises.check_06_1, whole) == "correct"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (token_loss(factor=False), "T² is missing"),
        (token_loss(reduction="mean"), "classes"),
        (token_loss(reduction="sum"), "not an average"),
        (token_loss(divisor="texts"), "number of texts"),
        (token_loss(divisor="all"), "padding included"),
        (token_loss(select=False), "padding counts"),
        (token_loss(reduction="sum", select=False, divisor="real"), "padding is in the sum"),
        (lambda *inputs: token_loss()(*inputs).detach(), "no gradient"),
        (lambda *inputs: token_loss(reduction="none")(*inputs), "one number"),
        (lambda *inputs: 2.0, "one number"),
        (lambda student, *_: (student * float("nan")).sum(), "gives nan"),
        (lambda *inputs: 7 * token_loss()(*inputs), "the formula"),
    ],
)
def test_1_mistakes_are_named(said, answer, words):
    assert words in said(exercises.check_06_1, answer)


def look_up(batch_ids, ids, logits):
    return torch.stack([logits[ids.index(key)] for key in batch_ids])


def or_first(batch_ids, ids, logits):
    return torch.stack([logits[ids.index(key) if key in ids else 0] for key in batch_ids])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (look_up, "correct"),
        (lambda batch, ids, logits: logits[[list(ids).index(key) for key in batch]], "correct"),
        (lambda batch, ids, logits: logits[: len(batch)], "first rows"),
        (lambda batch, ids, logits: logits[[i for i in range(4) if ids[i] in batch]], "(3, 2)"),
        (lambda batch, ids, logits: logits[[1, 2, 2]], "gives the rows of [7, 300, 300]"),
        (or_first, "never kept"),
    ],
)
def test_2_rows_are_found_by_id(said, answer, words):
    assert words in said(exercises.check_06_2, answer)
