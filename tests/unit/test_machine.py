"""What a container allows, read from forged control groups; every cause has its sentence."""

import importlib
import os
import re
from pathlib import Path
from types import SimpleNamespace

import helpers
from helpers.core import cuda, machine, processes
from helpers.exercises import tiny_models
from helpers.lessons import placement
from helpers.tools import doctor

import psutil
import pytest
import torch

MIB = 2**20


def forge(root: Path, files: dict[str, str]) -> Path:
    """Writes a tree of system files below `root`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def big_machine(monkeypatch):
    """A machine of 16 CPUs and 64 GiB, 60 of them free."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    memory = psutil.virtual_memory()._replace(total=2**36, available=60 * 2**30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)


def containers():
    """Rows of a file: what it is, its group, the group's files (M: MiB), CPUs, MiB, MiB free."""
    for line in Path(__file__).with_name("control_groups.tsv").read_text().splitlines():
        name, group, texts, *expected = line.split("\t")
        files = {"proc/self/cgroup": group} if group else {}
        for file, text in (one.split(": ") for one in texts.split(" | ") if one):
            text = re.sub(r"(\d+)M", lambda found: str(int(found[1]) * MIB), text)
            files[f"sys/fs/cgroup/{file}"] = text.replace(", ", "\n")
        yield pytest.param(files, *map(int, expected), id=name)


@pytest.mark.parametrize(("files", "cpus", "total", "available"), containers())
def test_cpus_and_memory_are_those_of_the_container(
    tmp_path, big_machine, files, cpus, total, available
):
    root = forge(tmp_path, files)
    assert machine.usable_cpus(root) == cpus
    found = machine.memory_total(root), machine.memory_available(root)
    assert found == (total * MIB, available * MIB)


def test_usable_cpus_obeys_affinity(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5}, raising=False)
    root = forge(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "800000 100000"})
    assert machine.usable_cpus(root) == 2


def test_importing_helpers_keeps_threads_within_the_quota(monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(machine, "visible_cpus", lambda: 64)
    for usable, threads in ((64, None), (2, "2")):
        monkeypatch.setattr(machine, "usable_cpus", lambda usable=usable: usable)
        importlib.reload(helpers)
        assert os.environ.get("OMP_NUM_THREADS") == os.environ.get("MKL_NUM_THREADS") == threads


def test_a_process_reports_its_own_memory_and_peak(run_python):
    code = """from helpers.core import processes
before, held = processes.process_memory(), bytearray(b"x" * 300_000_000)
print(processes.process_memory() - before, processes.process_peak())"""
    grown, peak = map(int, run_python(code).stdout.split())
    assert grown > 250e6
    assert peak > 300e6
    # A new process must not report the memory of the one that started it.
    code = "from helpers.core import processes; print(processes.process_peak())"
    assert 5e6 < int(run_python(code).stdout) < 200e6


X86 = "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu sse2 {}\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd {}\n"


@pytest.mark.parametrize(
    ("text", "present"),
    [
        (X86.format("avx2"), {"avx2"}),
        (X86.format("avx2 avx_vnni"), {"avx2", "avx_vnni"}),
        (
            X86.format("avx2 avx512f avx512_vnni avx512_bf16 amx_bf16 amx_tile amx_int8"),
            {"avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8"},
        ),
        (ARM.format("asimddp i8mm bf16"), {"arm_dotprod", "arm_i8mm", "arm_bf16"}),
        (X86.format(""), set()),
    ],
)
def test_cpu_features_on_linux(tmp_path, text, present):
    features = machine.cpu_features(forge(tmp_path, {"proc/cpuinfo": text}), "linux")
    assert {name for name, value in features.items() if value} == present
    assert features.keys() == machine.CPU_FEATURES.keys()


def test_pytorch_is_asked_where_the_system_is_silent(tmp_path, monkeypatch):
    values = {"hw.optional.arm.FEAT_DotProd": "1"}
    monkeypatch.setattr(machine, "sysctl", lambda name: values.get(name, ""))
    assert machine.cpu_features(tmp_path, "darwin") == {"arm_dotprod": True}
    told = {"sse": True, "avx2": True, "avx_vnni": True, "avx512_vnni": False}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: told)
    found = machine.cpu_features(tmp_path, "win32")
    assert found == {"avx2": True, "avx_vnni": True, "avx512_vnni": False}


def test_linux_and_pytorch_say_the_same_of_this_cpu():
    told, features = torch.cpu.get_capabilities(), machine.cpu_features()
    names = {name: key for name, (_, _, key) in machine.CPU_FEATURES.items() if key in told}
    assert len(names) >= 3
    assert all(features[name] == told[key] for name, key in names.items())


@pytest.mark.parametrize(
    ("features", "wide"), [({}, None), ({"avx2": True}, False), ({"avx_vnni": True}, True)]
)
def test_an_unknown_cpu_is_not_called_old(features, wide, monkeypatch):
    monkeypatch.setattr(machine, "cpu_features", lambda: features)
    assert machine.has_int8_dot_product() is wide
    (line,) = [str(one) for one in doctor.examine() if one.subject == "CPUs"]
    assert ("unknown" in line) == (wide is None)


RUNS = """sm_75 75 70, sm_80 86 90, sm_86 89 80, sm_120 121 100, compute_90 120 89, sm_90a 90 100,
compute_100a 100 103, sm_100f 103 120, sm_87 87 89, sm_80 80 87"""  # of the last two one is Jetson


@pytest.mark.parametrize("row", RUNS.split(","))
def test_which_gpu_runs_which_code(row):
    code, yes, no = row.split()
    assert machine.runs_on(code, divmod(int(yes), 10))
    assert not machine.runs_on(code, divmod(int(no), 10))


def test_a_gpu_without_code_is_no_device(monkeypatch):
    gpus = [("Tesla V100", (7, 0)), ("Tesla T4", (7, 5))]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80", "compute_80"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: gpus[index][1])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda name: gpus[int(name[-1])][0])
    assert machine.devices() == ["cuda:1", "cpu"]
    assert placement.resolve_device("auto") == torch.device("cuda:1")
    with pytest.raises(RuntimeError, match="no code for the GPU that 0 means"):
        placement.resolve_device(0)
    both = r"can use 1 CUDA device\(s\): Tesla T4. But .* no code for Tesla V100: it is left out"
    assert re.search(both, cuda.cuda_status().reason)
    del gpus[1]
    assert (machine.devices(), cuda.cuda_status().available) == (["cpu"], False)
    assert "no code for Tesla V100: use the CPU" in cuda.cuda_status().reason


WRONG = {0.5: "wrong numbers, off by 5.0e-01", float("nan"): "wrong", 1e-6: "what the CPU computes"}


@pytest.mark.parametrize(("off", "words"), WRONG.items())
def test_the_doctor_names_a_device_that_computes_wrongly(off, words, monkeypatch):
    right = tiny_models.run_on("cpu")
    monkeypatch.setattr(tiny_models, "run_on", {"mps": right + off, "cpu": right}.get)
    monkeypatch.setattr(machine, "devices", lambda: ["mps", "cpu"])
    (line,) = [one for one in doctor.examine() if one.subject == "results"]
    assert words in line.detail
    assert line.ok == (off == 1e-6)


def test_a_device_that_fails_does_not_agree_and_its_error_is_told():
    def compute(device):
        raise NotImplementedError("no kernel: PYTORCH_ENABLE_MPS_FALLBACK=1\nmore")

    agrees, sentence = machine.agrees_with_cpu("mps", compute)
    assert (agrees, sentence[-29:]) == (False, "PYTORCH_ENABLE_MPS_FALLBACK=1")
    assert machine.agrees_with_cpu(torch.device("cpu"), compute)[0]


@pytest.mark.parametrize(("free", "kernels"), [(1e9, 2), (1e9, 1), (8e9, 2)])
def test_a_second_kernel_is_warned_of_where_memory_is_short(free, kernels, monkeypatch, capsys):
    kernel = SimpleNamespace(info={"cmdline": ["python", "-m", "ipykernel_launcher", "-f", "x"]})
    found = [SimpleNamespace(info={"cmdline": None}), *[kernel] * kernels]
    monkeypatch.setattr(psutil, "process_iter", lambda names: found)
    monkeypatch.setattr(machine, "memory_available", lambda: free)
    processes.warn_of_other_kernels()
    assert bool(capsys.readouterr().out) == ((free, kernels) == (1e9, 2))


def facts(**changes) -> dict:
    """A Linux machine on which CUDA works, with `changes`."""
    versions = {"system": "linux", "torch": "2.13.0", "build": "13.0"}
    hardware = {"gpu": True, "driver": True, "visible": None, "names": ("Some GPU",)}
    return versions | hardware | changes


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"names": (), "torch": None}, "torch is not installed"),
        ({"names": (), "gpu": False, "driver": False}, "no NVIDIA GPU"),
        ({"names": (), "gpu": None, "driver": False, "system": "win32"}, "no NVIDIA GPU"),
        ({"names": (), "build": None}, "CPU-only build"),
        ({"names": (), "build": None, "gpu": None, "system": "win32"}, "CPU-only build"),
        ({"names": (), "driver": False}, "no driver"),
        ({"names": (), "visible": "-1"}, "CUDA_VISIBLE_DEVICES='-1'"),
        ({"names": ()}, "nvidia-smi"),
        ({"names": (), "system": "darwin", "build": None, "gpu": None, "driver": False}, "'mps'"),
    ],
)
def test_case_35_every_cause_of_absent_cuda_has_its_sentence(changes, cause):
    status = cuda.explain_cuda(**facts(**changes))
    assert not status.available
    assert cause in status.reason
    assert status.reason.endswith(".")
    assert ":" in status.reason, "the sentence names the way out"


def test_this_machine_and_its_gpus_are_read():
    assert 1 <= machine.usable_cpus() <= (os.cpu_count() or 1)
    assert 0 < machine.memory_available() <= machine.memory_total() <= psutil.virtual_memory().total
    status = cuda.explain_cuda(**facts(visible="0"))
    assert status.available
    assert "Some GPU" in status.reason


def test_status_devices_and_line_agree_with_torch():
    status = cuda.cuda_status()
    assert status.available == torch.cuda.is_available()
    assert machine.devices()[-1] == "cpu"
    assert ("cuda:0" in machine.devices()) == status.available
    for name in machine.devices():
        torch.device(name)
    line = machine.describe_machine(threads=1)
    assert "\n" not in line
    for part in (machine.cpu_name(), "1 threads", torch.__version__, machine.versions()["python"]):
        assert part in line


def test_synchronize_waits_for_each_device_that_holds_memory(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: [2**20, 0, 2**21][index])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda index: waited.append(index))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waited.append("mps"))
    machine.synchronize()
    assert waited == [0, 2, "mps"]


def test_run_in_subprocess_calls_in_another_process_and_raises_here():
    other = processes.run_in_subprocess(os.getpid)
    assert other != os.getpid()
    assert not psutil.pid_exists(other)
    assert processes.run_in_subprocess(sorted, [2, 1], reverse=True) == [2, 1]
    with pytest.raises(ZeroDivisionError):
        processes.run_in_subprocess(divmod, 1, 0)


def test_importing_machine_and_timing_imports_no_torch(run_python):
    code = "import sys; from helpers.core import machine, timing; machine.synchronize(); "
    assert run_python(code + "print('torch' in sys.modules)").stdout.strip() == "False"
