"""A true difference is found, none is invented, and no arm is timed under another's conditions."""

import os
import time

from helpers.core import isolation, machine, stopwatch, timing

import numpy as np
import pytest
import torch


def work(repeats):
    """Work of one thread, which neighbours on the machine disturb least."""
    return sum(i * i for _ in range(repeats) for i in range(20_000))


@pytest.fixture
def short_blocks(monkeypatch):
    """For arms without threads: many comparisons in little time."""
    monkeypatch.setattr(stopwatch, "BLOCK_SECONDS", 0.001)
    monkeypatch.setattr(stopwatch, "wait_until_quiet", lambda: None)


def comparison_of(seconds: dict) -> timing.Comparison:
    replies = [{"arm": a, "seconds": list(t), "calls": len(t)} for a, t in seconds.items()]
    return timing.Comparison(replies, None, 1)


# ---- what is found


def test_finds_twice_the_work():
    # Sleep, since a busy machine lengthens it less than work.
    arms = {"once": (lambda n: time.sleep(0.02), 5), "twice": (lambda n: time.sleep(0.04), 5)}
    result = timing.compare(arms)
    ratio = result.ratio("twice", "once")
    assert 1.6 < ratio.value < 2.5
    assert 1.2 < ratio.low <= ratio.value <= ratio.high
    assert ratio.low < 2.1
    assert ratio.high > 1.9
    assert result.verdict("once", "twice") == result.verdict("twice", "once")
    assert result.verdict("once", "twice").startswith("twice took ")
    inverse = (1 / ratio.value, 1 / ratio.high, 1 / ratio.low)
    assert result.ratio("once", "twice") == pytest.approx(inverse)


def test_equal_arms_seldom_differ(short_blocks):
    found = 0
    for _ in range(60):
        arms = {name: (lambda n: sum(range(n)), 5000) for name in ("a", "b")}
        verdict = timing.compare(arms, rounds=6).verdict("a", "b")
        found += not verdict.startswith("no difference found between a and b")
    # At a rate of 5 %, more than 8 of 60 would happen once in 200 runs; 6 rounds mean 3.1 %.
    assert found <= 8


@pytest.mark.parametrize("rounds", [6, 9, 12, 20, 31])
def test_rate_of_false_findings_and_power_on_known_noise(rounds):
    random, trials, found, missed = np.random.default_rng(rounds), 2000, 0, 0
    result = comparison_of({"a": [1.0] * 6, "b": [1.0] * 6})
    for _ in range(trials):
        # Times as they are: skewed, with a few that are several times too long, and a drift that
        # both arms share.
        drift = np.linspace(1, 1.5, rounds)
        noise = random.lognormal(0, 0.03, (2, rounds)) + random.exponential(3, (2, rounds)) * (
            random.random((2, rounds)) < 0.02
        )
        result.seconds = {"a": (drift * noise[0])[None], "b": (drift * noise[1])[None]}
        found += not result.verdict("a", "b").startswith("no difference")
        result.seconds["b"] = result.seconds["b"] * 1.5
        missed += not result.verdict("a", "b").startswith("b took 1.")
    assert found / trials < timing.LEVEL + 3 * (timing.LEVEL * 0.95 / trials) ** 0.5
    assert missed / trials < (0.25 if rounds == 6 else 0.02)


def test_passes_that_disagree_widen_the_interval():
    result = comparison_of({"a": [1.0] * 6, "b": [1.0] * 6})
    result.seconds = {"a": np.array([[1.0] * 20, [1.4] * 20]), "b": np.ones((2, 20))}
    assert result.ratio("a", "b") == pytest.approx((1.4**0.5, 1.0, 1.4))


def test_table_names_and_figures(short_blocks):
    result = timing.compare({"slow": (work, 3), "fast": (work, (3,))}, items=30)
    table = result.table
    assert list(table["arm"]) == ["slow", "fast"]
    assert (table["25 % ms"] <= table["median ms"]).all()
    assert (table["median ms"] <= table["75 % ms"]).all()
    assert table["items/s"].to_numpy() == pytest.approx(30 / (table["median ms"].to_numpy() / 1e3))
    assert (table["calls"] >= 12).all()
    assert machine.cpu_name() in result.machine
    figures = {0.00123: "0.00123", 0.5: "0.500", 1: "1.00", 12.34: "12.3", 1234.5: "1234", 0: "0"}
    assert {value: timing.figures(value) for value in figures} == figures


# ---- equal conditions


IDS = [[101, 7, 102], [101, 9, 102]]


SAME = [np.array(IDS, dtype=np.int32), torch.tensor(IDS, dtype=torch.int16), IDS]


@pytest.mark.parametrize("ids", SAME)
def test_equal_values_of_different_types_are_accepted(ids):
    assert stopwatch.digests({"ids": ids}) == stopwatch.digests({"ids": torch.tensor(IDS)})


@pytest.mark.parametrize(
    ("inputs", "name"),
    [
        ({"ids": torch.tensor(IDS) + 1, "mask": 1}, "ids"),
        ({"ids": torch.tensor(IDS)[:1], "mask": 1}, "ids"),
        ({"ids": torch.tensor(IDS).flatten(), "mask": 1}, "ids"),
        ({"ids": torch.tensor(IDS).float(), "mask": 1}, "ids"),
        ({"ids": torch.tensor(IDS), "mask": 0}, "mask"),
        ({"ids": torch.tensor(IDS)}, "mask"),
        ({"ids": torch.tensor(IDS), "mask": 1, "segments": 0}, "segments"),
    ],
)
def test_differing_inputs_are_refused_by_name(inputs, name):
    arms = {
        "first": (lambda **kw: 1, {"ids": torch.tensor(IDS), "mask": 1}),
        "second": (lambda **kw: 1, inputs),
    }
    with pytest.raises(ValueError, match=f"'first' and 'second' .* input '{name}'"):
        timing.compare(arms)


def test_inputs_are_given_as_the_kind_of_container_says(short_blocks):
    got = []

    def note(*args, **kwargs):
        got.append((args, kwargs))

    mapping, several = ({"a": 1}, ((), {"a": 1})), ((1, 2), ((1, 2), {}))
    a_list, text = ((["x"],), ((["x"],), {})), ("text", (("text",), {}))
    for inputs, expected in (({}, ((), {})), ((), ((), {})), mapping, several, a_list, text):
        timing.compare({"a": (note, inputs)}, rounds=6)
        assert got[-1] == expected


def test_too_few_rounds_for_an_interval_are_refused():
    with pytest.raises(ValueError, match="6 rounds"):
        timing.compare({"a": (work, 1)}, rounds=5)


def test_case_55_threads_are_equal_and_restored(short_blocks):
    before = torch.get_num_threads()
    other = before + 1
    seen = []

    def changes(n):
        torch.set_num_threads(1)

    def looks(n):
        seen.append(torch.get_num_threads())

    result = timing.compare({"changes": (changes, 1), "looks": (looks, 1)}, threads=other, rounds=6)
    assert set(seen) == {other}
    assert f"{other} threads" in result.machine
    assert torch.get_num_threads() == before

    def fails(n):
        torch.set_num_threads(1)
        raise RuntimeError("broken arm")

    with pytest.raises(RuntimeError, match="broken arm"):
        timing.compare({"fails": (fails, 1)}, threads=other)
    assert torch.get_num_threads() == before


class Device:
    """An accelerator that takes work at once and does it meanwhile, as CUDA and MPS do."""

    def __init__(self, seconds):
        self.seconds, self.free_at, self.events = seconds, 0.0, []

    def launch(self, n):
        self.events.append("call")
        self.free_at = max(self.free_at, time.perf_counter()) + self.seconds

    def synchronize(self):
        self.events.append("sync")
        time.sleep(max(0.0, self.free_at - time.perf_counter()))


def test_case_82_synchronises_before_start_and_stop_of_every_block(monkeypatch):
    device = Device(0.02)
    monkeypatch.setattr(machine, "synchronize", device.synchronize)
    result = timing.compare({"a": (device.launch, 1), "b": (device.launch, 1)}, rounds=6)
    assert result.table["median ms"].between(19, 60).all()
    blocks = " ".join(device.events).split("sync")
    # sync calls sync | sync calls sync | ...: nothing between two blocks.
    assert [bool(block.strip()) for block in blocks] == [False, True] * (len(blocks) // 2) + [False]
    assert device.events[1:3] == ["call", "call"], "the first block is the warm-up"
    assert device.events.count("sync") >= 2 * 2 * (1 + 1 + 6)

    monkeypatch.setattr(machine, "synchronize", lambda: None)
    unsynchronised = timing.compare({"a": (device.launch, 1)}, rounds=6)
    assert unsynchronised.table["median ms"][0] < 1  # far too good


@pytest.fixture(scope="module")
def onnx_session():
    """An ONNX Runtime session with two threads, whose waiting ones spin as they do by default."""
    import onnx.parser
    import onnxruntime

    header = '<ir_version: 9, opset_import: ["" : 18]>'
    graph = "square (float[n, n] x) => (float[n, n] y) { y = MatMul(x, x) }"
    model = onnx.parser.parse_model(f"{header} {graph}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def busy_threads(x=None):
    """How many CPUs the threads of this process use while this one sleeps for 10 ms."""
    used, start = time.process_time(), time.perf_counter()
    time.sleep(0.01)
    return (time.process_time() - used) / (time.perf_counter() - start)


def test_case_56_waiting_threads_of_onnx_runtime_are_over_before_the_next_arm(
    onnx_session, monkeypatch
):
    x = np.ones((256, 256), dtype=np.float32)
    naive = []
    for _ in range(20):
        onnx_session.run(None, {"x": x})
        naive.append(busy_threads())
    if np.median(naive) < 0.3:
        pytest.skip("ONNX Runtime's threads do not spin on this machine")
    monkeypatch.setattr(stopwatch, "BLOCK_SECONDS", 0.005)
    seen = []
    onnx_arm = (lambda x: onnx_session.run(None, {"x": x}), (x,))
    timing.compare({"onnx": onnx_arm, "probe": (lambda x: seen.append(busy_threads()), (x,))})
    in_rounds = seen[-12:]  # before them: warm-up and calibration, in which nothing else runs
    assert np.median(in_rounds) < 0.1
    assert np.median(in_rounds) < np.median(naive) / 3


# ---- arms in processes of their own


def sleeper(repeats, log=None, value=1):
    import atexit
    import os
    import pathlib
    import time

    def note(what):
        if log:
            with pathlib.Path(log).open("a") as file:
                print(what, repeats, file=file)

    note("start")
    atexit.register(note, "end")
    print("what an arm prints is not part of the answer")

    def fn(value):
        time.sleep(0.02 * repeats)  # a busy machine lengthens sleep less than work

    return fn, {"value": value}, {"pid": os.getpid(), "omp": os.environ["OMP_NUM_THREADS"]}


@pytest.mark.slow
def test_isolated_arms_run_one_at_a_time_in_turns(tmp_path):
    log = str(tmp_path / "log")
    arms = {
        "once": (f"{__name__}:sleeper", {"repeats": 1, "log": log}),
        "twice": (f"{__name__}:sleeper", {"repeats": 2, "log": log}),
    }
    result = timing.compare(arms, isolate=True, threads=1)
    assert 1.5 < result.ratio("twice", "once").value < 2.7
    assert result.verdict("once", "twice").startswith("twice took ")
    events = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    order = [["start", n] for n in "1221"]
    assert events == [event for start in order for event in (start, ["end", start[1]])]
    assert result.seconds["once"].shape == (2, 6)
    assert result.extra["once"]["omp"] == "1"
    assert len({os.getpid(), *(extra["pid"] for extra in result.extra.values())}) == 3


def other_inputs():
    return (lambda **kwargs: 1), {"value": 2, "more": 3}


def test_isolated_arms_with_differing_inputs_are_refused():
    other_value = (f"{__name__}:sleeper", {"repeats": 1, "value": 2})
    for other, name in ((other_value, "value"), (f"{__name__}:other_inputs", "more")):
        arms = {"a": (f"{__name__}:sleeper", {"repeats": 1}), "b": other}
        with pytest.raises(ValueError, match=f"'a' and 'b' differ in input '{name}'"):
            timing.compare(arms, isolate=True, rounds=6, passes=1)


def fails_to_load():
    raise FileNotFoundError("no model at this address")


def leaves_without_a_word():
    import os

    os._exit(0)


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        (f"{__name__}:fails_to_load", "FileNotFoundError: no model at this address"),
        (f"{__name__}:leaves_without_a_word", "exit status 0"),
        ("no_such_module:setup", "No module named 'no_such_module'"),
    ],
)
def test_a_failing_arm_is_named_with_its_last_lines(setup, message):
    with pytest.raises(isolation.ArmError, match="arm 'bad' failed in its own process") as caught:
        timing.compare({"bad": setup}, isolate=True)
    caught.match(message)


def lazily(n):
    yield work(n)


@pytest.mark.parametrize("fn", [lazily, lambda n: map(work, [n])])
def test_arms_that_return_before_they_have_worked_are_refused(fn, short_blocks):
    with pytest.raises(TypeError, match="its work waits until it is read"):
        timing.compare({"a": (fn, 10)})


@pytest.mark.parametrize("inputs", [([1, 2],), (np.ones(2),)])
def test_arms_that_change_their_inputs_are_refused(inputs, short_blocks):
    def changes(values):
        values[0] = values[0] + 1

    with pytest.raises(ValueError, match="inputs of arm 'a' changed"):
        timing.compare({"a": (changes, inputs)})
