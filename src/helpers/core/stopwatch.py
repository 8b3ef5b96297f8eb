"""Time arms in this process: equal inputs, warm-up, alternating rounds."""

import hashlib
import math
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping

from helpers.core import machine

BLOCK_SECONDS = 0.05  # shorter calls are repeated until a timed block lasts about this long
QUIET_SECONDS = 1.0  # longest wait for other threads before a block


def _plain(value):
    """Return an input as lists of numbers and texts, whatever type and container held them."""
    if hasattr(value, "tolist"):  # tensors and arrays; NumPy lacks some of torch's types
        value = value.tolist()
    if isinstance(value, Mapping):
        return [(key, _plain(value[key])) for key in sorted(value)]
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, bool):
        return int(value)  # masks come in both types
    if value is None or isinstance(value, str | bytes | int | float):
        return value
    kind = type(value).__name__
    raise TypeError(f"an input holds a {kind}: give tensors, arrays, numbers or text")


def digests(inputs) -> dict[str, str]:
    """Return a digest of every input of a call, by its name or place."""
    if not isinstance(inputs, Mapping):
        inputs = dict(enumerate(inputs if isinstance(inputs, list | tuple) else (inputs,)))
    texts = {str(name): repr(_plain(value)) for name, value in inputs.items()}
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def require_equal(inputs: list[tuple[str, dict[str, str]]]) -> None:
    """Raise ValueError unless all arms have the same inputs."""
    (first, expected), *rest = inputs
    for arm, found in rest:
        for name in sorted(expected.keys() | found.keys()):
            if found.get(name) != expected.get(name):
                message = f"arms {first!r} and {arm!r} differ in input {name!r}"
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


def timed(fn: Callable, inputs, calls: int) -> float:
    """Return the seconds that some calls take, one after another."""
    args, kwargs = (inputs,), {}
    if isinstance(inputs, Mapping):  # a BatchEncoding is one, too
        args, kwargs = (), dict(inputs)
    elif isinstance(inputs, list | tuple):
        args = inputs
    machine.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        result = fn(*args, **kwargs)
    machine.synchronize()
    seconds = time.perf_counter() - start
    if isinstance(result, Iterator | Awaitable):
        kind = type(result).__name__
        raise TypeError(f"an arm returned a {kind}: its work waits until it is read, so read it")
    return seconds


def _calibrated(arm, warmup: int) -> int:
    """Warm an arm up; returns how many calls make a block."""
    timed(*arm, warmup)
    calls = 1
    while (took := timed(*arm, calls)) < BLOCK_SECONDS:
        calls = math.ceil(calls * min(10, 1.2 * BLOCK_SECONDS / max(took, 1e-9)))
    return calls


def measure(arms: Mapping, rounds: int, warmup: int, threads: int) -> list[dict]:
    """Time `{name: (fn, inputs)}` in this process; the answer, a dict an arm, can be JSON."""
    inputs = {name: digests(arm[1]) for name, arm in arms.items()}
    require_equal(list(inputs.items()))
    calls, seconds = {}, {name: [] for name in arms}
    for name, arm in arms.items():
        _set_threads(threads)
        calls[name] = _calibrated(arm, warmup)
    for number in range(rounds):
        for name in reversed(arms) if number % 2 else arms:
            _set_threads(threads)  # each time, since an arm may change them
            wait_until_quiet()
            if calls[name] > 1:  # the waking of sleeping threads is not a part of a short call
                timed(*arms[name], 1)
            seconds[name].append(timed(*arms[name], calls[name]) / calls[name])
    replies = []
    for name, arm in arms.items():
        if digests(arm[1]) != inputs[name]:
            raise ValueError(f"the inputs of arm {name!r} changed: its calls did different work")
        reply = {"arm": name, "inputs": inputs[name], "seconds": seconds[name]}
        replies.append(reply | {"calls": calls[name] * rounds})
    return replies
