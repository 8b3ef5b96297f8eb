"""Exercises of notebook 06: each mistake is named, right answers are right."""

from helpers import exercises

import pytest
import torch
from torch.nn import functional
from transformers import BertForSequenceClassification


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


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (token_loss(), "correct"),
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
def test_1_the_formula_and_its_mistakes(said, answer, words):
    assert words in said(exercises.check_06_1, answer)


@pytest.mark.parametrize(
    ("layers", "training", "accuracy", "words"),
    [
        (2, False, 0.8, "correct"),
        (3, False, 0.9, "3 layers"),
        (2, True, 0.8, "call eval()"),
        (2, False, 0.6, "60.0% right"),
        (2, False, float("nan"), "nan% right"),
    ],
)
def test_2_a_student_is_small_and_trained(said, tiny_model, layers, training, accuracy, words):
    student = tiny_model(BertForSequenceClassification, num_hidden_layers=layers).train(training)
    assert words in said(exercises.check_06_2, student, lambda model: accuracy)
