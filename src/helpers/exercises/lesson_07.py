"""Checks for the exercises of notebook 07 (SciBERT on GPUs)."""

import math
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


@exercise
def check_07_2(answer: Callable[..., tuple[float, float]]) -> str | None:
    """A function of two timings (tokens, seconds): the fixed price and the price of a token."""
    for fixed, each in ((2e-3, 1e-5), (0.3, 1e-6), (0.0, 4e-4)):
        small, large = ((tokens, fixed + tokens * each) for tokens in (64, 4096))
        fixed_found, each_found = answer(small, large)
        if fixed and math.isclose(each_found, large[1] / large[0]):
            return "time by tokens spreads the fixed price over them: take differences of the two"
        if max(abs(fixed_found - fixed), abs(each_found - each)) > 1e-9:
            wanted = f"where a batch costs {fixed:.3g} s and {each:.3g} s a token"
            return f"{wanted}, it gives {fixed_found:.3g} and {each_found:.3g}"
    return None
