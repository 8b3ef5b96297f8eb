"""Checks for the exercises of notebook 07 (SciBERT on GPUs)."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from helpers.exercises import exercise


class _Device:
    """An asynchronous device with a clock of its own.

    A call returns at once, its work (7 s) is done when waited for.

    The first call also starts the device up (100 s). `log` is what the learner's function did, in
    order.
    """

    def __init__(self):
        self.now, self.queued, self.log, self.started = 0.0, 0.0, [], False

    def launch(self) -> None:
        self.log.append("launch")
        self.now += 0.001
        self.queued += 7 if self.started else 107
        self.started = True

    def wait(self) -> None:
        self.log.append("wait")
        self.now, self.queued = self.now + self.queued, 0.0

    def clock(self) -> float:
        self.log.append("clock")
        return self.now


@exercise
def check_07_1(answer: Callable[[Callable, Callable, Callable], float]) -> str | None:
    """A function (launch, wait, clock) that returns the seconds of one call, honestly."""
    device = _Device()
    seconds = answer(device.launch, device.wait, device.clock)
    if not isinstance(seconds, int | float):
        return f"it should return seconds, a number, not {type(seconds).__name__}"
    if device.log.count("clock") < 2:
        return "the clock has to be read twice: before and after"
    first, last = device.log.index("clock"), len(device.log) - 1 - device.log[::-1].index("clock")
    if "launch" not in device.log[:first]:
        return "the first call starts the device up, and it is in the measured time: call once before the clock starts"
    if device.log[last - 1] != "wait":
        return "the clock is stopped while the device still computes: wait first"
    if device.log[first - 1] != "wait":
        return "the warm-up is still computing when the clock starts: wait for it"
    if abs(seconds - 7.001) > 0.01:
        return (
            f"a call takes 7.00 s on this device, not {seconds:.2f}: divide by the number of calls"
        )
    return None


@exercise
def check_07_2(answer: Callable[[list[int], int], list[list[int]]]) -> str | None:
    """A function (ids with [CLS] and [SEP], limit) that returns the text's windows, each with [CLS] and [SEP]."""
    for count, limit in ((3, 8), (6, 8), (7, 8), (13, 8), (30, 8), (511, 512), (0, 8)):
        ids = [101, *range(1000, 1000 + count), 102]
        windows = answer(list(ids), limit)
        case = f"for {count + 2} ids and a limit of {limit}"
        if not isinstance(windows, list | tuple) or not all(
            isinstance(window, list | tuple) for window in windows
        ):
            return f"{case} it should return a list of lists of ids, not {windows!r:.60}"
        if any(len(window) > limit for window in windows):
            return f"{case} a window has {max(map(len, windows))} ids: [CLS] and [SEP] count, too"
        if any(not len(window) or window[0] != 101 or window[-1] != 102 for window in windows):
            return (
                f"{case} a window does not begin with [CLS] (ids[0]) and end with [SEP] (ids[-1])"
            )
        inside = [number for window in windows for number in window[1:-1]]
        if any(number in (101, 102) for number in inside):
            return f"{case} a [CLS] or [SEP] stands in the middle of a window"
        if missing := set(ids[1:-1]) - set(inside):
            return f"{case} {len(missing)} tokens of the text are in no window"
        if any(
            list(window[1:-1]) != ids[window[1] - 999 :][: len(window) - 2]
            for window in windows
            if window[2:]
        ):
            return f"{case} a window holds something else than a piece of the text, in its order"
        if not windows:
            return f"{case} there is no window: an empty text would have no vector"
        if count and any(len(window) == 2 for window in windows):
            return f"{case} a window holds no token of the text"
        spans = [(window[1], window[-2]) for window in windows]
        if any(
            start <= before or end <= until
            for (before, until), (start, end) in itertools.pairwise(spans)
        ):
            return f"{case} a window has to begin and to end after the one before it (overlap is allowed)"
    return None


class _Name(str):
    """A name with another hash in each process, as Python's have.

    So has a set of them another order.
    """

    def __new__(cls, name: str, rank: int):
        self = super().__new__(cls, name)
        self.rank = rank
        return self

    def __hash__(self):
        return hash((self.rank, str(self)))


@exercise
def check_07_3(answer: Callable[[Sequence[str], set[str], int, int], Any]) -> str | None:
    """A function (shards, done, rank, world) that returns the shards that process `rank` of `world` has to make."""
    shards = [f"shard-{number}" for number in range(7)]
    for done in (set(), {"shard-1", "shard-3", "shard-5"}, set(shards[:4]), set(shards)):
        for world in (1, 2, 3, 10):
            shares = []
            for rank in range(world):
                names, finished = ([_Name(name, rank) for name in some] for some in (shards, done))
                shares.append([str(name) for name in answer(names, set(finished), rank, world)])
            made = [shard for share in shares for shard in share]
            case = f"with {world} processes and {len(done)} shards done"
            if again := sorted(done.intersection(made)):
                return f"{case}, {again[0]} is made again although it is done"
            if len(made) != len(set(made)):
                return f"{case}, two processes make the same shard (a set has another order in each process)"
            if missing := sorted(set(shards) - done - set(made)):
                return f"{case}, nobody makes {missing[0]}"
            if max(map(len, shares)) - min(map(len, shares)) > 1:
                return f"{case}, one process has {max(map(len, shares))} shards and another {min(map(len, shares))}"
    return None
