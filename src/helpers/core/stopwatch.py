"""Time arms in this process: equal inputs, warm-up, alternating rounds."""

import hashlib
import math
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping

import numpy as np
import psutil

BLOCK_SECONDS = 0.05  # shorter calls are repeated until a timed block lasts about this long
QUIET_SECONDS = 1.0  # longest wait for other threads before a block


def digests(value, name: str = "") -> dict[str, str]:
    """Return a digest of every value inside a value, by name, whatever type its numbers have."""
    if value is None or isinstance(value, str | bytes):
        return {name or "0": repr(value)}
    if name and not isinstance(value, Mapping):
        # NumPy lacks some of torch's types, such as bfloat16.
        numbers = value.tolist() if hasattr(value, "tolist") else value
        try:
            array = np.asarray(numbers)
        except (ValueError, TypeError, RuntimeError):  # a list of unequal things
            array = np.zeros(0, object)
        if array.dtype.kind in "biuf":
            array = array.astype("<f8" if array.dtype.kind == "f" else "<i8")
            found = hashlib.sha256(array.tobytes()).hexdigest()
            return {name: f"{array.dtype} {array.shape} {found}"}
        value = numbers
    if not isinstance(value, Mapping | list | tuple):
        if name:
            kind = type(value).__name__
            raise TypeError(f"input {name!r} is a {kind}: give tensors, arrays, numbers or text")
        value = (value,)
    found = {name: f"{len(value)} values"} if name else {}
    for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
        found |= digests(part, f"{name}.{key}" if name else str(key))
    return found


def require_equal(inputs: list[tuple[str, dict[str, str]]]) -> None:
    """Raise ValueError unless all arms have the same inputs."""
    (first, expected), *rest = inputs
    for arm, found in rest:
        for name in sorted(expected.keys() | found.keys()):
            if found.get(name) != expected.get(name):
                both = name in expected and name in found
                how = "differ in" if both else "do not both have"
                message = f"arms {first!r} and {arm!r} {how} input {name!r}"
                raise ValueError(f"{message}: that would time different work")


def _set_threads(count: int) -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)


def wait_until_quiet() -> None:
    """Wait until no other thread of this process computes, at most `QUIET_SECONDS`."""
    end, still = time.perf_counter() + QUIET_SECONDS, 0
    while still < 2 and time.perf_counter() < end:
        # Twice: where another program holds the CPUs, a spinning thread can look asleep once.
        used, start = time.process_time(), time.perf_counter()
        time.sleep(0.01)
        busy = time.process_time() - used >= 0.1 * (time.perf_counter() - start)
        still = 0 if busy else still + 1


def timed(fn: Callable, inputs, calls: int, sync: Callable[[], None]) -> float:
    """Return the seconds that some calls take, one after another."""
    args, kwargs = (inputs,), {}
    if isinstance(inputs, Mapping):  # a BatchEncoding is one, too
        args, kwargs = (), dict(inputs)
    elif isinstance(inputs, list | tuple):
        args = inputs
    sync()
    start = time.perf_counter()
    for _ in range(calls):
        result = fn(*args, **kwargs)
    sync()
    seconds = time.perf_counter() - start
    if isinstance(result, Iterator | Awaitable):
        kind = type(result).__name__
        raise TypeError(f"an arm returned a {kind}: its work waits until it is read, so read it")
    return seconds


def _calibrated(name: str, arm, warmup: int, sync: Callable[[], None]) -> int:
    """Warm an arm up; returns how many calls make a block."""
    try:
        timed(*arm, warmup, sync)
    except Exception as error:
        error.add_note(f"This happened in arm {name!r}, while it warmed up.")
        raise
    calls = 1
    while (took := timed(*arm, calls, sync)) < BLOCK_SECONDS:
        calls = math.ceil(calls * min(10, 1.2 * BLOCK_SECONDS / max(took, 1e-9)))
    return calls


def measure(
    arms: Mapping, rounds: int, warmup: int, threads: int, sync: Callable[[], None]
) -> list[dict]:
    """Time `{name: (fn, inputs)}` in this process; the answer, a dict an arm, can be JSON."""
    inputs = {name: digests(arm[1]) for name, arm in arms.items()}
    require_equal(list(inputs.items()))
    calls, seconds = {}, {name: [] for name in arms}
    for name, arm in arms.items():
        _set_threads(threads)
        calls[name] = _calibrated(name, arm, warmup, sync)
    start, others = time.perf_counter(), _others_seconds()
    for number in range(rounds):
        for name in reversed(arms) if number % 2 else arms:
            _set_threads(threads)  # each time, since an arm may change them
            wait_until_quiet()
            if calls[name] > 1:  # the waking of sleeping threads is not a part of a short call
                timed(*arms[name], 1, sync)
            seconds[name].append(timed(*arms[name], calls[name], sync) / calls[name])
    others = (_others_seconds() - others) / (time.perf_counter() - start)
    replies = []
    for name, arm in arms.items():
        if digests(arm[1]) != inputs[name]:
            raise ValueError(f"the inputs of arm {name!r} changed: its calls did different work")
        reply = {"arm": name, "inputs": inputs[name], "seconds": seconds[name], "others": others}
        replies.append(reply | {"calls": calls[name] * rounds})
    return replies


def _others_seconds() -> float:
    """Return the CPU seconds that all other programs of the machine have used so far."""
    return psutil.cpu_times().user + psutil.cpu_times().system - time.process_time()
