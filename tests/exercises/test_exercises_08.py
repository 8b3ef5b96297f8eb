"""Exercises of notebook 08: each mistake is named, right answers are right."""

from helpers import exercises

import pytest


def said(capsys, check, answer):
    check(answer)
    return capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda share, factor: 1 / (1 - share + share / factor), "correct"),
        (lambda share, factor: 1 - share + share / factor, "takes 0.750 of its time"),
        (lambda share, factor: 1 - share + share * factor, "Add up times"),
        (lambda share, factor: factor, "the whole gets 1.33 times as fast"),
        (lambda share, factor: 1 / (1 - share) if share < 1 else factor, "the whole gets 1.33"),
        (lambda share, factor: str(share), "a number, not str"),
    ],
)
def test_1_amdahl(capsys, answer, words):
    assert words in said(capsys, exercises.check_08_1, answer)


def beats(other, row, strictly=True):
    at_least = other["ms"] <= row["ms"] and other["accuracy"] >= row["accuracy"]
    more = other["ms"] < row["ms"] or other["accuracy"] > row["accuracy"]
    return at_least and (more or not strictly)


def front(rows, strictly=True):
    others = [[other for other in rows if other is not row] for row in rows]
    pairs = zip(rows, others, strict=True)
    return [
        row["name"] for row, rest in pairs if not any(beats(other, row, strictly) for other in rest)
    ]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (front, "correct"),
        (lambda rows: set(front(rows)), "correct"),
        (lambda rows: front(rows, strictly=False), "both stay"),
        (lambda rows: [row["name"] for row in rows], "slow is slower than large"),
        (
            lambda rows: [row["name"] for row in rows if row["name"] != "slow"],
            "late is no more accurate",
        ),
        (lambda rows: [*front(rows), "twin"], "twin takes as long"),
        (lambda rows: front(rows)[1:], "large is missing"),
        (lambda rows: [*front(rows), "another"], "called another"),
        (lambda rows: (name for name in front(rows)), "correct"),
        (lambda rows: "large", "list of names"),
        (lambda rows: None, "list of names"),
    ],
)
def test_2_the_front(capsys, answer, words):
    assert words in said(capsys, exercises.check_08_2, answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda texts, per_second, price: texts / per_second / 3600 * price, "correct"),
        (lambda texts, per_second, price: texts / per_second * price, "the price is for an hour"),
        (lambda texts, per_second, price: texts * per_second * price, "cost 1, not"),
        (lambda texts, per_second, price: None, "a number, not NoneType"),
    ],
)
def test_3_the_price(capsys, answer, words):
    assert words in said(capsys, exercises.check_08_3, answer)
