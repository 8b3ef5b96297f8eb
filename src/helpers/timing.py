"""The only stopwatch: `compare` times several ways of doing the same work, fairly. Every notebook that times uses it.

What makes a comparison fair is done here and not left to each cell: equal inputs (checked), equal threads, a warm-up,
rounds in alternating order, accelerators synchronised, and quiet between the arms, because ONNX Runtime's threads go
on spinning for about 0.1 s after a call and make a PyTorch call that follows several times slower.
"""

import contextlib
import hashlib
import html
import inspect
import json
import math
import os
import pkgutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from helpers import machine

import numpy as np
import psutil

BLOCK_SECONDS = 0.05  # shorter calls are repeated until a timed block lasts about this long
QUIET_SECONDS = 1.0  # longest wait for other threads before a block
LEVEL = 0.05  # at most this share of comparisons of equal arms finds a difference
MIN_ROUNDS = 6  # fewer cannot give an interval at that level


class Ratio(NamedTuple):
    """How many times as long one arm takes as another: median over the rounds, and its interval at 1 - `LEVEL`."""

    value: float
    low: float
    high: float


class ArmError(RuntimeError):
    """An arm failed in its own process; the message names it and ends with the last lines it wrote."""


class Comparison:
    """What `compare` measured; a notebook shows its table and, below, the line that names the machine.

    table: a pandas row an arm, in the order given: median and quartiles of the milliseconds a call takes, ...
    seconds: for each arm an array (passes, rounds of a pass) of seconds a call
    machine: hardware, threads, versions, and what disturbed the measurement, if anything did
    extra: for each arm in a process of its own what its set-up returned as third value
    """

    def __init__(self, replies: list[dict], items: int | None, threads: int):
        import pandas as pd

        by_arm = {arm: [reply for reply in replies if reply["arm"] == arm] for arm in [r["arm"] for r in replies]}
        self.seconds = {arm: np.array([reply["seconds"] for reply in got]) for arm, got in by_arm.items()}
        self.extra = {arm: got[-1].get("extra") for arm, got in by_arm.items()}
        self.machine = machine.machine_line(threads)
        if (others := max(reply["others"] for reply in replies)) + threads > psutil.cpu_count() + 0.25:
            self.machine += f" · other programs kept {others:.1f} CPUs busy meanwhile, so expect noise"
        fastest = min(by_arm, key=lambda arm: np.median(self.seconds[arm]))
        rows = []
        for arm, got in by_arm.items():
            low, median, high = np.percentile(self.seconds[arm], [25, 50, 75])
            row = {"arm": arm, "median ms": median * 1e3, "25 % ms": low * 1e3, "75 % ms": high * 1e3}
            row["times the fastest"] = self.ratio(arm, fastest).value
            row |= {"items/s": items / median} if items else {}
            row |= {"peak MB": max(r["peak_bytes"] for r in got) / 1e6} if "peak_bytes" in got[0] else {}
            rows.append(row | {"calls": sum(reply["calls"] for reply in got)})
        self.table = pd.DataFrame(rows)

    def ratio(self, slow: str, fast: str) -> Ratio:
        """How many times as long arm `slow` took as arm `fast`, from the ratios within each round.

        The interval is the sign test's: the k-th smallest and the k-th largest ratio, k from the binomial distribution
        (Conover, Practical Nonparametric Statistics, ch. 3), which assumes nothing about how times are distributed.
        Processes differ too: it is widened to hold the median ratio of every pass. Raises KeyError for an unknown arm.
        """
        for arm in {slow, fast} - self.seconds.keys():
            raise KeyError(f"no arm is called {arm!r}; the arms are {list(self.seconds)}")
        ratios = np.log(self.seconds[slow] / self.seconds[fast])  # so that both directions give the same verdict
        ordered, n, k, passes = np.sort(ratios, axis=None), ratios.size, 0, np.median(ratios, axis=1)
        while 2 * sum(math.comb(n, i) for i in range(k + 1)) <= LEVEL * 2**n:
            k += 1
        low, high = min(ordered[k - 1], passes.min()), max(ordered[n - k], passes.max())
        return Ratio(*np.exp([np.median(ratios), low, high]).tolist())

    def verdict(self, a: str, b: str) -> str:
        """One sentence: which of two arms took longer and how much, or that no difference was found."""
        value, low, high = self.ratio(a, b)
        if low <= 1 <= high:
            return f"no difference found between {a} and {b} (ratio {_figures(low)} to {_figures(high)})"
        if value < 1:
            a, b, value, low, high = b, a, 1 / value, 1 / high, 1 / low
        return f"{a} took {_figures(value)} times as long as {b} ({_figures(low)} to {_figures(high)})"

    def plot(self, alt: str | None = None) -> None:
        """Shows a bar an arm, as long as the median, with the quartiles; `alt` replaces the sentence below it."""
        from helpers import plots

        arms, median, low, high = (self.table[name] for name in ("arm", "median ms", "25 % ms", "75 % ms"))
        fig, ax = plots.plt.subplots(figsize=(7, 1 + 0.5 * len(arms)))
        bars = ax.barh(arms, median, xerr=[median - low, high - median], color=plots.BLUE, ecolor=plots.GREY, capsize=4)
        ax.bar_label(bars, [f"{_figures(ms)} ms" for ms in median], padding=6)
        ax.margins(x=0.15)
        ax.invert_yaxis()
        ax.grid(axis="y", visible=False)
        ax.set_xlabel("milliseconds a call: median and quartiles (less is better)")
        first, *others = self.table.sort_values("median ms")["arm"]
        listed = ", ".join(f"{arm} {_figures(ms)} ms" for arm, ms in zip(arms, median, strict=True))
        computed = "; ".join([f"Median time a call: {listed}", *(self.verdict(other, first) for other in others)])
        plots.show(fig, alt or computed + ".")

    def __repr__(self) -> str:
        return f"{self.table.to_string(index=False, float_format=_figures)}\n{self.machine}"

    def _repr_html_(self) -> str:
        return self.table.to_html(index=False, float_format=_figures, border=0) + f"<p>{html.escape(self.machine)}</p>"


def _figures(value: float) -> str:
    """A positive number with three significant figures, without an exponent."""
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}" if value > 0 else "0"


def _digests(value, name: str = "") -> dict[str, str]:
    """A digest of every value inside `value`, by name; equal numbers of different types have equal digests."""
    if value is None or isinstance(value, str | bytes):
        return {name or "0": repr(value)}
    if name and not isinstance(value, Mapping):
        value = value.tolist() if hasattr(value, "tolist") else value  # NumPy lacks some of torch's types (bfloat16)
        array = np.zeros(0, object)
        with contextlib.suppress(ValueError, TypeError, RuntimeError):  # a list of unequal things
            array = np.asarray(value)
        if array.dtype.kind in "biuf":
            array = array.astype("<f8" if array.dtype.kind == "f" else "<i8")
            return {name: f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"}
    if not isinstance(value, Mapping | list | tuple):
        if name:
            raise TypeError(f"input {name!r} is a {type(value).__name__}: give tensors, arrays, numbers or text")
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
                raise ValueError(f"arms {first!r} and {arm!r} {how} input {name!r}: that would time different work")


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
    kwargs = dict(inputs) if isinstance(inputs, Mapping) else {}  # a BatchEncoding is a mapping, too
    args = () if isinstance(inputs, Mapping) else inputs if isinstance(inputs, list | tuple) else (inputs,)
    sync()
    start = time.perf_counter()
    for _ in range(calls):
        result = fn(*args, **kwargs)
    sync()
    seconds = time.perf_counter() - start
    if isinstance(result, Iterator | Awaitable):
        raise TypeError(f"an arm returned a {type(result).__name__}: its work waits until it is read, so read it there")
    return seconds


def _measure(arms: Mapping, rounds: int, warmup: int, threads: int, sync: Callable[[], None]) -> list[dict]:
    """Times `{name: (fn, inputs)}` in this process. The answer, for each arm one dict, can go through JSON."""
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
            if calls[name] > 1:  # else the waking of sleeping threads counts as a part of a short call
                _timed(*arms[name], 1, sync)
            seconds[name].append(_timed(*arms[name], calls[name], sync) / calls[name])
    others = (_others_seconds() - others) / (time.perf_counter() - start)
    for name, arm in arms.items():
        if _digests(arm[1]) != inputs[name]:
            raise ValueError(f"the inputs of arm {name!r} changed on the way, so its calls did different work")
    replies = [{"arm": name, "inputs": inputs[name], "seconds": seconds[name], "others": others} for name in arms]
    return [reply | {"calls": calls[reply["arm"]] * rounds} for reply in replies]


def _others_seconds() -> float:
    """CPU seconds that all other programs of the machine have used so far."""
    return psutil.cpu_times().user + psutil.cpu_times().system - time.process_time()


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

    Raises ValueError for too few rounds and for arms that have different inputs or change theirs, TypeError for inputs
    that cannot be compared, for what is no arm and for an arm that returns before it has worked (a generator), ArmError
    if an arm fails in its own process.
    """
    counts = (rounds, warmup, passes, 1 if threads is None else threads)
    whole = all(isinstance(number, int) and number > 0 for number in counts)
    if not (isinstance(arms, Mapping) and arms and whole and rounds >= MIN_ROUNDS):
        least = f"{MIN_ROUNDS} rounds (fewer give no interval), a warm-up, a pass and a thread"
        raise ValueError(f"compare needs arms by name and, in whole numbers, at least {least}")
    for name, arm in arms.items():
        if not isolate and not (isinstance(arm, tuple | list) and len(arm) == 2 and callable(arm[0])):
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


def _request(name: str, arm) -> dict:
    """What a child needs to know about an arm's set-up: its source, or where to import it from."""
    setup, kwargs = arm if isinstance(arm, list | tuple) else (arm, {})
    request = {"arm": name, "setup": setup, "source": None, "kwargs": kwargs}
    if isinstance(setup, str):
        return request
    if not inspect.isfunction(setup) or setup.__closure__ or setup.__name__ == "<lambda>":
        raise ValueError(f"arm {name!r}: its set-up has to be a def of its own that uses no variables around it")
    try:
        return request | {"setup": setup.__name__, "source": textwrap.dedent(inspect.getsource(setup))}
    except (OSError, TypeError) as error:
        raise ValueError(f"arm {name!r}: the source of its set-up cannot be read: give 'module:function'") from error


def _run_child(request: dict) -> dict:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(request["threads"]))
    paths = os.pathsep.join(str(Path(path).absolute()) for path in sys.path)
    command = [sys.executable, "-c", "from helpers.timing import _child; _child()"]
    environment = os.environ | threads | {"PYTHONPATH": paths, "PYTHONIOENCODING": "utf-8"}
    options = {"capture_output": True, "encoding": "utf-8", "errors": "replace", "env": environment}
    child = subprocess.run(command, input=json.dumps(request), check=False, **options)  # Ctrl-C kills the child
    if child.returncode == 0 and child.stdout:
        return json.loads(child.stdout)
    cause = f"exit status {child.returncode}" + (" (killed, often for want of memory)" * (child.returncode == -9))
    last = "\n".join(child.stderr.strip().splitlines()[-8:])
    hint = "\nA set-up runs in a new process: it has to import and build all it uses." if "NameError" in last else ""
    raise ArmError(f"arm {request['arm']!r} failed in its own process, {cause}:\n{last}{hint}")


def _child() -> None:
    """The other side of `_run_child`: reads a request from standard input, answers on standard output."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the arm prints must not get into the answer
    request = json.load(sys.stdin)
    scope = {"__name__": "__arm__"}
    if request["source"]:
        exec(compile(request["source"], f"<set-up of {request['arm']}>", "exec"), scope)
    make = scope[request["setup"]] if request["source"] else pkgutil.resolve_name(request["setup"])
    made = make(**request["kwargs"])
    if not (isinstance(made, tuple | list) and len(made) in (2, 3) and callable(made[0])):
        raise TypeError(f"a set-up returns (fn, inputs) or (fn, inputs, extra), not {made!r:.80}")
    fn, inputs, extra = [*made, None][:3]
    settings = {name: request[name] for name in ("rounds", "warmup", "threads")}
    (reply,) = _measure({request["arm"]: (fn, inputs)}, sync=machine.synchronize, **settings)
    reply |= {"extra": extra, "peak_bytes": machine.process_peak()}
    with answer:
        json.dump(reply, answer)
