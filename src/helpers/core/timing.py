"""The only stopwatch: `compare` times several ways of doing the same work, fairly.

Inputs are equal (checked), as are threads; there is a warm-up, the order of rounds alternates,
accelerators are synchronised, and arms wait for quiet: ONNX Runtime's threads spin for about 0.1 s
after a call and make a PyTorch call that follows several times slower.
"""

import math
import sys
from collections.abc import Mapping
from typing import NamedTuple

from helpers.core import isolation, machine, stopwatch

import numpy as np

LEVEL = 0.05  # at most this share of comparisons of equal arms finds a difference
MIN_ROUNDS = 6  # fewer cannot give an interval at that level


class Ratio(NamedTuple):
    """How many times as long one arm takes as another: median over the rounds, and its interval."""

    value: float
    low: float
    high: float


class Comparison:
    """What `compare` measured; its text is the table and the line that names the machine."""

    def __init__(self, replies: list[dict], items: int | None, threads: int):
        by_arm: dict[str, list[dict]] = {}
        for reply in replies:
            by_arm.setdefault(reply["arm"], []).append(reply)
        self.seconds = {}  # of each arm: an array (passes, rounds of a pass) of seconds a call
        self.extra = {}  # of each arm in a process of its own: its set-up's third value
        for arm, got in by_arm.items():
            self.seconds[arm] = np.array([reply["seconds"] for reply in got])
            self.extra[arm] = got[-1].get("extra")
        self.machine = machine.describe_machine(threads)
        self.table = self._table(by_arm, items)  # medians and quartiles of milliseconds a call

    def _table(self, by_arm: dict[str, list[dict]], items: int | None):
        import pandas as pd

        fastest = min(by_arm, key=lambda arm: np.median(self.seconds[arm]))
        rows = []
        for arm, got in by_arm.items():
            low, median, high = np.percentile(self.seconds[arm], [25, 50, 75]) * 1e3
            row = {"arm": arm, "median ms": median, "25 % ms": low, "75 % ms": high}
            row["times the fastest"] = self.ratio(arm, fastest).value
            if items:
                row["items/s"] = 1e3 * items / median
            rows.append(row | {"calls": sum(reply["calls"] for reply in got)})
        return pd.DataFrame(rows)

    def ratio(self, slow: str, fast: str) -> Ratio:
        """Return how many times as long one arm took as another, from the ratios in each round.

        The interval is the sign test's (Conover, Practical Nonparametric Statistics, ch. 3), which
        assumes nothing about how times are distributed. Processes differ too: it is widened to
        hold the median ratio of every pass.
        """
        # Of logarithms, so that both directions give the same verdict.
        ratios = np.log(self.seconds[slow] / self.seconds[fast])
        ordered, passes = np.sort(ratios, axis=None), np.median(ratios, axis=1)
        n, k = ratios.size, 0
        while 2 * sum(math.comb(n, i) for i in range(k + 1)) <= LEVEL * 2**n:
            k += 1
        low, high = min(ordered[k - 1], passes.min()), max(ordered[n - k], passes.max())
        return Ratio(*np.exp([np.median(ratios), low, high]).tolist())

    def verdict(self, a: str, b: str) -> str:
        """Say which of two arms took longer and how much, or that no difference was found."""
        value, low, high = self.ratio(a, b)
        if low <= 1 <= high:
            interval = f"ratio {figures(low)} to {figures(high)}"
            return f"no difference found between {a} and {b} ({interval})"
        if value < 1:
            return self.verdict(b, a)
        interval = f"{figures(low)} to {figures(high)}"
        return f"{a} took {figures(value)} times as long as {b} ({interval})"

    def __repr__(self) -> str:
        return f"{self.table.to_string(index=False, float_format=figures)}\n{self.machine}"


def figures(value: float) -> str:
    """Return a positive number with three significant figures, without an exponent."""
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}" if value > 0 else "0"


def compare(
    arms: Mapping[str, object],
    *,
    rounds: int = 12,
    warmup: int = 2,
    threads: int | None = None,
    isolate: bool = False,
    passes: int = 2,
    items: int | None = None,
) -> Comparison:
    """Time several ways of doing the same work on the same inputs.

    Args:
        arms: For each name `(fn, inputs)`, called as fn(**inputs) for a mapping, fn(*inputs) for a
            list or tuple, else fn(inputs). With `isolate` a set-up "module:function", or a pair of
            it and its keyword arguments; it returns `(fn, inputs)` or `(fn, inputs, extra)`.
        rounds: Timed blocks of each arm; their order is reversed each round.
        warmup: Calls of each arm before anything is timed.
        threads: PyTorch's, restored afterwards; give ONNX Runtime the same number.
        isolate: Run each arm in a process of its own.
        passes: Turns of isolated arms, which share the rounds.
        items: Sentences that a call works through, to show items/s as well.

    Raises:
        ValueError: For arms with different inputs, or that change theirs.
        TypeError: For an arm that returns before it has worked (a generator).
    """
    if not arms or rounds < MIN_ROUNDS:
        raise ValueError(f"compare needs arms, and {MIN_ROUNDS} rounds: fewer give no interval")
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else None
    settings = {"warmup": warmup, "threads": threads or before or machine.usable_cpus()}
    replies = []
    if isolate:
        settings["rounds"] = math.ceil(rounds / passes)
        requests = [isolation.request(name, arm) | settings for name, arm in arms.items()]
        for number in range(passes):
            for asked in reversed(requests) if number % 2 else requests:
                replies.append(isolation.run_child(asked))
                stopwatch.require_equal([(reply["arm"], reply["inputs"]) for reply in replies])
    else:
        try:
            replies = stopwatch.measure(arms, rounds, **settings)
        finally:
            if torch:
                torch.set_num_threads(before)
    return Comparison(replies, items, settings["threads"])
