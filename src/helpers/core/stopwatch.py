"""Time arms in this process: equal inputs, warm-up, alternating rounds."""

import contextlib
import hashlib
import math
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping

import numpy as np
import psutil

BLOCK_SECONDS = 0.05  # shorter calls are repeated until a timed block lasts about this long


QUIET_SECONDS = 1.0  # longest wait for other threads before a block


def _digests(value, name: str = "") -> dict[str, str]:
    """A digest of every value inside `value`, by name.

    Equal numbers of different types have equal digests.
    """
    if value is None or isinstance(value, str | bytes):
        return {name or "0": repr(value)}
    if name and not isinstance(value, Mapping):
        value = (
            value.tolist() if hasattr(value, "tolist") else value
        )  # NumPy lacks some of torch's types (bfloat16)
        array = np.zeros(0, object)
        with contextlib.suppress(ValueError, TypeError, RuntimeError):  # a list of unequal things
            array = np.asarray(value)
        if array.dtype.kind in "biuf":
            array = array.astype("<f8" if array.dtype.kind == "f" else "<i8")
            return {
                name: f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"
            }
    if not isinstance(value, Mapping | list | tuple):
        if name:
            raise TypeError(
                f"input {name!r} is a {type(value).__name__}: give tensors, arrays, numbers or text"
            )
        value = (value,)
    found = {name: f"{len(value)} values"} if name else {}
    for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
        found |= _digests(part, f"{name}.{key}" if name else str(key))
    return found


def _require_equal(inputs: list[tuple[str, dict[str, str]]]) -> None:
    (first, expected), *rest = inputs
    for arm, found in rest:
        for name in sorted(expected.keys() | found.keys()):
            if found.get(name) != expected.get(name):
                how = "differ in" if name in expected and name in found else "do not both have"
                raise ValueError(
                    f"arms {first!r} and {arm!r} {how} input {name!r}: that would time different work"
                )


def _set_threads(count: int) -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)


def _wait_until_quiet() -> None:
    """Waits until no other thread of this process computes, at most `QUIET_SECONDS`."""
    end, still = time.perf_counter() + QUIET_SECONDS, 0
    while still < 2 and time.perf_counter() < end:
        # Twice: where another program holds the CPUs, a spinning thread can look asleep once.
        used, start = time.process_time(), time.perf_counter()
        time.sleep(0.01)
        still = still + 1 if time.process_time() - used < 0.1 * (time.perf_counter() - start) else 0


def _timed(fn: Callable, inputs, calls: int, sync: Callable[[], None]) -> float:
    """Seconds that `calls` calls take."""
    kwargs = (
        dict(inputs) if isinstance(inputs, Mapping) else {}
    )  # a BatchEncoding is a mapping, too
    args = (
        ()
        if isinstance(inputs, Mapping)
        else inputs
        if isinstance(inputs, list | tuple)
        else (inputs,)
    )
    sync()
    start = time.perf_counter()
    for _ in range(calls):
        result = fn(*args, **kwargs)
    sync()
    seconds = time.perf_counter() - start
    if isinstance(result, Iterator | Awaitable):
        raise TypeError(
            f"an arm returned a {type(result).__name__}: its work waits until it is read, so read it there"
        )
    return seconds


def _measure(
    arms: Mapping, rounds: int, warmup: int, threads: int, sync: Callable[[], None]
) -> list[dict]:
    """Times `{name: (fn, inputs)}` in this process.

    The answer, for each arm one dict, can go through JSON.
    """
    inputs = {name: _digests(arm[1]) for name, arm in arms.items()}
    _require_equal(list(inputs.items()))
    calls, seconds = dict.fromkeys(arms, 1), {name: [] for name in arms}
    for name, arm in arms.items():
        _set_threads(threads)
        try:
            _timed(*arm, warmup, sync)
        except Exception as error:
            error.add_note(f"This happened in arm {name!r}, while it warmed up.")
            raise
        while (took := _timed(*arm, calls[name], sync)) < BLOCK_SECONDS:
            calls[name] = math.ceil(calls[name] * min(10, 1.2 * BLOCK_SECONDS / max(took, 1e-9)))
    start, others = time.perf_counter(), _others_seconds()
    for number in range(rounds):
        for name in reversed(arms) if number % 2 else arms:
            _set_threads(threads)  # each time, since an arm may change them
            _wait_until_quiet()
            if (
                calls[name] > 1
            ):  # else the waking of sleeping threads counts as a part of a short call
                _timed(*arms[name], 1, sync)
            seconds[name].append(_timed(*arms[name], calls[name], sync) / calls[name])
    others = (_others_seconds() - others) / (time.perf_counter() - start)
    for name, arm in arms.items():
        if _digests(arm[1]) != inputs[name]:
            raise ValueError(
                f"the inputs of arm {name!r} changed on the way, so its calls did different work"
            )
    replies = [
        {"arm": name, "inputs": inputs[name], "seconds": seconds[name], "others": others}
        for name in arms
    ]
    return [reply | {"calls": calls[reply["arm"]] * rounds} for reply in replies]


def _others_seconds() -> float:
    """CPU seconds that all other programs of the machine have used so far."""
    return psutil.cpu_times().user + psutil.cpu_times().system - time.process_time()
