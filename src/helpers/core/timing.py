"""The only stopwatch: `compare` times several ways of doing the same work, fairly.

Every notebook that times uses it.

What makes a comparison fair is done here and not left to each cell: equal inputs (checked), equal
threads, a warm-up, rounds in alternating order, accelerators synchronised, and quiet between the
arms, because ONNX Runtime's threads go on spinning for about 0.1 s after a call and make a PyTorch
call that follows several times slower.
"""

import html
import math
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

from helpers.core import machine
from helpers.core.isolation import _request, _run_child
from helpers.core.stopwatch import _measure, _require_equal

import numpy as np
import psutil

LEVEL = 0.05  # at most this share of comparisons of equal arms finds a difference
MIN_ROUNDS = 6  # fewer cannot give an interval at that level


class Ratio(NamedTuple):
    """How many times as long one arm takes as another.

    Median over the rounds, and its interval at 1 - `LEVEL`.
    """

    value: float
    low: float
    high: float


class Comparison:
    """What `compare` measured.

    A notebook shows its table and, below, the line that names the machine.

    table: a pandas row an arm, in the order given: median and quartiles of the milliseconds a call
        takes, ...
    seconds: for each arm an array (passes, rounds of a pass) of seconds a call
    machine: hardware, threads, versions, and what disturbed the measurement, if anything did
    extra: for each arm in a process of its own what its set-up returned as third value
    """

    def __init__(self, replies: list[dict], items: int | None, threads: int):
        import pandas as pd

        by_arm = {
            arm: [reply for reply in replies if reply["arm"] == arm]
            for arm in [r["arm"] for r in replies]
        }
        self.seconds = {
            arm: np.array([reply["seconds"] for reply in got]) for arm, got in by_arm.items()
        }
        self.extra = {arm: got[-1].get("extra") for arm, got in by_arm.items()}
        self.machine = machine.describe_machine(threads)
        if (
            others := max(reply["others"] for reply in replies)
        ) + threads > psutil.cpu_count() + 0.25:
            self.machine += (
                f" · other programs kept {others:.1f} CPUs busy meanwhile, so expect noise"
            )
        fastest = min(by_arm, key=lambda arm: np.median(self.seconds[arm]))
        rows = []
        for arm, got in by_arm.items():
            low, median, high = np.percentile(self.seconds[arm], [25, 50, 75])
            row = {
                "arm": arm,
                "median ms": median * 1e3,
                "25 % ms": low * 1e3,
                "75 % ms": high * 1e3,
            }
            row["times the fastest"] = self.ratio(arm, fastest).value
            row |= {"items/s": items / median} if items else {}
            row |= (
                {"peak MB": max(r["peak_bytes"] for r in got) / 1e6}
                if "peak_bytes" in got[0]
                else {}
            )
            rows.append(row | {"calls": sum(reply["calls"] for reply in got)})
        self.table = pd.DataFrame(rows)

    def ratio(self, slow: str, fast: str) -> Ratio:
        """How many times as long arm `slow` took as arm `fast`, from the ratios within each round.

        The interval is the sign test's: the k-th smallest and the k-th largest ratio, k from the
        binomial distribution (Conover, Practical Nonparametric Statistics, ch. 3), which assumes
        nothing about how times are distributed. Processes differ too: it is widened to hold the
        median ratio of every pass. Raises KeyError for an unknown arm.
        """
        for arm in {slow, fast} - self.seconds.keys():
            raise KeyError(f"no arm is called {arm!r}; the arms are {list(self.seconds)}")
        ratios = np.log(
            self.seconds[slow] / self.seconds[fast]
        )  # so that both directions give the same verdict
        ordered, n, k, passes = (
            np.sort(ratios, axis=None),
            ratios.size,
            0,
            np.median(ratios, axis=1),
        )
        while 2 * sum(math.comb(n, i) for i in range(k + 1)) <= LEVEL * 2**n:
            k += 1
        low, high = min(ordered[k - 1], passes.min()), max(ordered[n - k], passes.max())
        return Ratio(*np.exp([np.median(ratios), low, high]).tolist())

    def verdict(self, a: str, b: str) -> str:
        """One sentence.

        Which of two arms took longer and how much, or that no difference was found.
        """
        value, low, high = self.ratio(a, b)
        if low <= 1 <= high:
            return f"no difference found between {a} and {b} (ratio {_figures(low)} to {_figures(high)})"
        if value < 1:
            a, b, value, low, high = b, a, 1 / value, 1 / high, 1 / low
        return (
            f"{a} took {_figures(value)} times as long as {b} ({_figures(low)} to {_figures(high)})"
        )

    def plot(self, alt: str | None = None) -> None:
        """Shows a bar an arm, as long as the median, with the quartiles.

        `alt` replaces the sentence below it.
        """
        from helpers.core import plots

        arms, median, low, high = (
            self.table[name] for name in ("arm", "median ms", "25 % ms", "75 % ms")
        )
        fig, ax = plots.plt.subplots(figsize=(7, 1 + 0.5 * len(arms)))
        bars = ax.barh(
            arms,
            median,
            xerr=[median - low, high - median],
            color=plots.BLUE,
            ecolor=plots.GREY,
            capsize=4,
        )
        ax.bar_label(bars, [f"{_figures(ms)} ms" for ms in median], padding=6)
        ax.margins(x=0.15)
        ax.invert_yaxis()
        ax.grid(axis="y", visible=False)
        ax.set_xlabel("milliseconds a call: median and quartiles (less is better)")
        first, *others = self.table.sort_values("median ms")["arm"]
        listed = ", ".join(f"{arm} {_figures(ms)} ms" for arm, ms in zip(arms, median, strict=True))
        computed = "; ".join(
            [f"Median time a call: {listed}", *(self.verdict(other, first) for other in others)]
        )
        plots.show(fig, alt or computed + ".")

    def __repr__(self) -> str:
        return f"{self.table.to_string(index=False, float_format=_figures)}\n{self.machine}"

    def _repr_html_(self) -> str:
        return (
            self.table.to_html(index=False, float_format=_figures, border=0)
            + f"<p>{html.escape(self.machine)}</p>"
        )


def _figures(value: float) -> str:
    """A positive number with three significant figures, without an exponent."""
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
    sync: Callable[[], None] = machine.synchronize,
) -> Comparison:
    """Times several ways of doing the same work on the same inputs.

    arms: for each name `(fn, inputs)`, called as fn(**inputs) for a mapping, fn(*inputs) for a list or tuple, else
        fn(inputs): a list of sentences goes in as `(sentences,)`. With `isolate` a set-up function instead, or
        "module:function", or a pair of either and its keyword arguments (JSON). It imports and builds everything it
        needs and returns `(fn, inputs)` or `(fn, inputs, extra)`, `extra` being anything that JSON can hold.
    rounds: timed blocks of each arm, at least 6; the order of the arms is reversed each round
    warmup: calls of each arm before anything is timed
    threads: PyTorch's in all arms, restored afterwards; by default as many as it uses now, or as there are usable CPUs.
        ONNX Runtime has threads of its own: give its session options the same number.
    isolate: run each arm in a process of its own, one at a time, in `passes` turns that share the rounds: A B, B A
    items: sentences (or whatever else) that a call works through, to show items/s as well
    sync: waits for accelerators; called before the clock starts and before it stops (not used with `isolate`)

    Raises ValueError for too few rounds and for arms that have different inputs or change theirs,
    TypeError for inputs that cannot be compared, for what is no arm and for an arm that returns
    before it has worked (a generator), ArmError if an arm fails in its own process.
    """
    counts = (rounds, warmup, passes, 1 if threads is None else threads)
    whole = all(isinstance(number, int) and number > 0 for number in counts)
    if not (isinstance(arms, Mapping) and arms and whole and rounds >= MIN_ROUNDS):
        least = f"{MIN_ROUNDS} rounds (fewer give no interval), a warm-up, a pass and a thread"
        raise ValueError(f"compare needs arms by name and, in whole numbers, at least {least}")
    for name, arm in arms.items():
        if not isolate and not (
            isinstance(arm, tuple | list) and len(arm) == 2 and callable(arm[0])
        ):
            raise TypeError(f"arm {name!r} has to be a pair (function, inputs), not {arm!r:.80}")
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else None
    settings = {"warmup": warmup, "threads": threads or before or machine.usable_cpus()}
    if isolate:
        settings["rounds"], replies = math.ceil(rounds / passes), []
        requests = [_request(name, arm) | settings for name, arm in arms.items()]
        for number in range(passes):
            for request in reversed(requests) if number % 2 else requests:
                replies.append(_run_child(request))
                _require_equal([(reply["arm"], reply["inputs"]) for reply in replies])
    else:
        try:
            replies = _measure(arms, rounds, sync=sync, **settings)
        finally:
            if torch:
                torch.set_num_threads(before)
    return Comparison(replies, items, settings["threads"])
