"""The checks of the exercises of notebook 07 say what is wrong with an answer."""

from helpers import exercises

import pytest


def honest(launch, wait, clock):
    launch()
    wait()
    start = clock()
    for _ in range(3):
        launch()
    wait()
    return (clock() - start) / 3


def cold(launch, wait, clock):
    wait()
    start = clock()
    launch()
    wait()
    return clock() - start


def not_waiting(launch, wait, clock):
    launch()
    wait()
    start = clock()
    launch()
    return clock() - start


def late(launch, wait, clock):
    launch()
    start = clock()
    launch()
    wait()
    return clock() - start


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (honest, "correct"),
        (cold, "starts the device up"),
        (not_waiting, "still computes"),
        (late, "warm-up is still computing"),
        (lambda *_: 7.001, "read twice"),
        (lambda *device: 3 * honest(*device), "divide by the number of calls"),
        (lambda *_: None, "read twice"),
    ],
)
def test_case_82_notebook_07_exercise_1(answer, verdict, said):
    assert verdict in said(exercises.check_07_1, answer)


def prices(small, large):
    each = (large[1] - small[1]) / (large[0] - small[0])
    return small[1] - small[0] * each, each


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (prices, "correct"),
        (lambda small, large: (0.0, large[1] / large[0]), "spreads the fixed price"),
        (lambda *timings: prices(*timings)[::-1], "it gives 1e-05 and 0.002"),
        (lambda *timings: prices(*timings)[0], "it raised TypeError"),
    ],
)
def test_notebook_07_exercise_2(answer, verdict, said):
    assert verdict in said(exercises.check_07_2, answer)
