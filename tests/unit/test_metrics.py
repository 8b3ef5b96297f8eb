"""Intervals that cover, a paired test that agrees with the textbook."""

from helpers.core import metrics

import numpy as np
import pandas as pd
import pytest
import torch


def test_wilson_interval_of_a_textbook_value():
    """81 right of 263.

    Wilson's interval is 25.5 % to 36.6 % (Newcombe, Statistics in Medicine 17 (1998), table I).
    """
    found = metrics.accuracy([1] * 263, [1] * 81 + [0] * 182)
    assert (found.value, found.n) == (81 / 263, 263)
    assert (found.low, found.high) == (
        pytest.approx(0.2553, abs=5e-5),
        pytest.approx(0.3662, abs=5e-5),
    )


def test_it_stays_within_0_and_1():
    for n in range(1, 100):
        none, every = metrics.accuracy([1] * n, [0] * n), metrics.accuracy([1] * n, [1] * n)
        assert 0 <= none.low < 1e-12 < none.high
        assert "-0.0" not in str(none)
        assert every.low < every.high <= 1


def test_exact_mcnemar_by_hand():
    """10 texts that only a gets right, 2 that only b does.

    P = 2 * (C(12,0) + C(12,1) + C(12,2)) / 2**12.
    """
    a = np.array([1] * 10 + [0] * 2 + [1] * 88)
    b = np.array([0] * 10 + [1] * 2 + [1] * 88)
    found = metrics.paired(np.ones(100, dtype=int), a, b)
    assert (found.only_a, found.only_b, found.p) == (10, 2, pytest.approx(2 * 79 / 4096))
    assert found.difference == pytest.approx(-0.08)
    assert found.low < -0.08 < found.high < 0
    assert "-8.0 points" in str(found)


def test_equal_models_do_not_differ():
    found = metrics.paired([0, 1, 1], [0, 1, 0], [0, 1, 0])
    assert (found.difference, found.low, found.high, found.p) == (0, 0, 0, 1)


@pytest.mark.parametrize("predictions", [[], [1], [1, 0, 1]])
def test_lengths_that_differ_are_refused(predictions):
    with pytest.raises(ValueError, match="one for each"):
        metrics.accuracy([1, 0], predictions)
    with pytest.raises(ValueError, match="one for each"):
        metrics.accuracy([], [])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "values",
    [np.array([0.9, 0.8]), [1.5, 1], ["pos", "neg"], [1, None], [1, float("nan")], [1, -100]],
    ids=["shares", "halves", "words", "None", "NaN", "missing"],
)
def test_invalid_labels_are_refused(values):
    for pair in (([1, 1], values), (values, [1, 1])):
        with pytest.raises(ValueError, match="whole numbers from 0 on"):
            metrics.accuracy(*pair)
    with pytest.raises(ValueError, match="whole numbers from 0 on"):
        metrics.paired([1, 1], [1, 1], values)


def test_labels_of_every_kind_count():
    kinds = ([1, 0], [True, False], np.array([1, 0]), np.array([True, False]), np.array([1.0, 0.0]))
    for values in (*kinds, torch.tensor([1, 0]), pd.Series([1, 0], index=[7, 9])):
        assert metrics.accuracy([1, 0], values).value == 1
