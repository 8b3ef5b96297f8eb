"""Checks for the exercises of notebook 08 (put it together)."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from helpers.exercises import exercise

import numpy as np

ROWS = [("large", 40.0, 0.90), ("slow", 50.0, 0.89), ("small", 2.0, 0.85)]
ROWS += [("twin", 2.0, 0.84), ("tiny", 1.0, 0.80), ("late", 3.0, 0.85)]
BEATEN = {
    "slow": "is slower than large, and less accurate",
    "late": "is no more accurate than small, and slower",
    "twin": "takes as long as small, and is less accurate",
}


# What three stages give as the probability of label 1
SURE = {"good": (0.9, 0.1, 0.1), "hm": (0.6, 0.3, 0.8), "bad": (0.05, 0.9, 0.9)}
SURE |= {"so so": (0.6, 0.1, 0.9), "border": (0.75, 0.1, 0.1)}


@exercise
def check_08_1(answer: Callable[[list[str], list[Callable], float], Sequence[int]]) -> str | None:
    """A function (texts, stages, threshold): labels from the first stage that is sure."""
    asked: list[list[str]] = [[], [], []]

    def stage(number: int, texts: list[str]) -> np.ndarray:
        asked[number] += list(texts)
        positive = np.array([SURE[text][number] for text in texts])
        return np.stack([1 - positive, positive], axis=1)

    stages = [partial(stage, number) for number in range(3)]
    found = answer(list(SURE), stages, 0.75)
    if found is None:
        return "it should return the labels"
    if "good" in asked[1] + asked[2]:
        return "another stage was asked about a text that stage 1 was sure of: that saves nothing"
    if "border" in asked[1]:
        return "a stage that is exactly as sure as the threshold answers"
    if asked[2] != ["hm"]:
        return "the last stage should be asked about what no other was sure of, and nothing else"
    right, found = [1, 1, 0, 0, 1], [int(label) for label in found]
    return None if found == right else f"expected {right} for {list(SURE)}, not {found}"


@exercise
def check_08_2(answer: Callable[[Sequence[Mapping]], list[str]]) -> str | None:
    """A function (rows of name, ms, accuracy): the names of those that no other one beats."""
    names = answer([dict(zip(("name", "ms", "accuracy"), row, strict=True)) for row in ROWS])
    if names is None or isinstance(names, str):
        return "it should return a list of names"
    found, right = set(names), {"large", "small", "tiny"}
    for name in sorted(found - right):
        return f"{name} {BEATEN.get(name, 'is not among the rows')}: nobody would choose it"
    for name in sorted(right - found):
        return f"{name} is missing: nothing else is both as fast and as accurate"
    same = [{"name": name, "ms": 1.0, "accuracy": 0.8} for name in ("one", "other")]
    if set(answer(same)) != {"one", "other"}:
        return "two pipelines with the same time and accuracy do not beat each other: both stay"
    return None
