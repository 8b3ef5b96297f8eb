"""Checks for the exercises of notebook 07 (SciBERT on GPUs)."""

import itertools
from collections.abc import Callable

from helpers.exercises import exercise


class _Device:
    """An asynchronous device with a clock of its own, and a log of what was called.

    A call returns at once; its work takes 7 s until it is done, and the first one 100 s more.
    """

    def __init__(self):
        self.now, self.queued, self.log = 0.0, 0.0, []

    def launch(self) -> None:
        self.now += 0.001
        self.queued += 7 if "launch" in self.log else 107
        self.log.append("launch")

    def wait(self) -> None:
        self.log.append("wait")
        self.now += self.queued
        self.queued = 0.0

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
    readings = [place for place, name in enumerate(device.log) if name == "clock"]
    if len(readings) < 2:
        return "the clock has to be read twice: before and after"
    first, last = readings[0], readings[-1]
    if "launch" not in device.log[:first]:
        return "the first call starts the device up: call once before the clock starts"
    if device.log[last - 1] != "wait":
        return "the clock is stopped while the device still computes: wait first"
    if device.log[first - 1] != "wait":
        return "the warm-up is still computing when the clock starts: wait for it"
    if abs(seconds - 7.001) > 0.01:
        return f"a call takes 7.00 s here, not {seconds:.2f}: divide by the number of calls"
    return None


def _window_fault(ids: list[int], limit: int, windows: list[list[int]]) -> str | None:
    """Say what is wrong with the windows of a text."""
    if any(len(window) > limit for window in windows):
        return f"a window has {max(map(len, windows))} ids: [CLS] and [SEP] count, too"
    if any(not len(window) or window[0] != 101 or window[-1] != 102 for window in windows):
        return "a window does not begin with [CLS] (ids[0]) and end with [SEP] (ids[-1])"
    pieces = [list(window[1:-1]) for window in windows]
    if list(itertools.chain(*pieces)) != ids[1:-1]:
        return "the windows' tokens, one window after the other, are not the text"
    if not windows or (len(ids) > 2 and [] in pieces):
        return "a window holds no token, or there is none: every text needs a vector"
    return None


@exercise
def check_07_2(answer: Callable[[list[int], int], list[list[int]]]) -> str | None:
    """A function (ids with [CLS] and [SEP], limit) that returns the windows of the text."""
    for count, limit in ((3, 8), (6, 8), (7, 8), (13, 8), (30, 8), (511, 512), (0, 8)):
        ids = [101, *range(1000, 1000 + count), 102]
        windows = answer(list(ids), limit)
        case = f"for {count + 2} ids and a limit of {limit}"
        lists = list | tuple
        if not isinstance(windows, lists) or not all(isinstance(one, lists) for one in windows):
            return f"{case} it should return a list of lists of ids, not {windows!r:.60}"
        if fault := _window_fault(ids, limit, windows):
            return f"{case} {fault}"
    return None
