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
        (lambda *_: None, "seconds, a number"),
    ],
)
def test_case_82_notebook_07_exercise_1(answer, verdict, said):
    assert verdict in said(exercises.check_07_1, answer)


def windows(ids, limit, size=None, edges=True):
    size = size or limit - 2
    inner = ids[1:-1]
    parts = [inner[place : place + size] for place in range(0, max(len(inner), 1), size)]
    return [[ids[0], *part, ids[-1]] if edges else part for part in parts]


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (windows, "correct"),
        (lambda ids, limit: windows(ids, limit, limit), "[CLS] and [SEP] count"),
        (lambda ids, limit: windows(ids, limit, edges=False), "does not begin with [CLS]"),
        (lambda ids, limit: windows(ids, limit)[:1], "are not the text"),
        (lambda ids, limit: windows(ids, limit)[::-1], "are not the text"),
        (lambda ids, limit: windows(ids, limit) * 2, "are not the text"),
        (lambda ids, limit: ids, "a list of lists"),
        (lambda ids, limit: [*windows(ids, limit), [ids[0], ids[-1]]], "holds no token"),
        (lambda ids, limit: windows(ids, limit) if ids[2:] else [], "or there is none"),
    ],
)
def test_notebook_07_exercise_2(answer, verdict, said):
    assert verdict in said(exercises.check_07_2, answer)
