"""What this machine offers: CPUs and memory as the container allows, CPU features, devices.

Importing it imports nothing that has to be installed. An argument `root` stands for Linux's `/`.
"""

import functools
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from helpers.core import files
from helpers.core.files import read_system_file

PACKAGES = "torch", "transformers", "onnxruntime", "onnx", "torchao", "peft", "tokenizers", "numpy"

# What decides how fast int8 and bfloat16 run: its name in Linux's /proc/cpuinfo, in macOS's
# sysctl (null where it has none), and in PyTorch's list, which Windows needs.
CPU_FEATURES = json.loads((files.DATA / "cpu_features.json").read_text(encoding="utf-8"))


def _number(text: str) -> int | None:
    """Return a control group's number; None for "max" (no limit) and for no file."""
    return int(text) if text.isdigit() else None


def _cgroups(root: str | os.PathLike) -> list[Path]:
    """Return the directories of this process's control groups; a limit in any of them binds.

    In a container the path in /proc/self/cgroup may be the host's and not exist here; those of
    its parents that exist, at least the mount itself, are then what is left. (Version 2 only:
    version 1, which Linux distributions left by 2022, gives its groups other files.)
    """
    base, found = Path(root) / "sys/fs/cgroup", []
    for line in read_system_file(Path(root) / "proc/self/cgroup").splitlines():
        path = line.removeprefix("0::")
        if path != line:
            inside = base / Path(*(part for part in path.split("/") if part != ".."))
            found += [inside, *(one for one in inside.parents if one.is_relative_to(base))]
    return [path for path in found if path.is_dir()]


def visible_cpus() -> int:
    """Return how many CPUs this process may run on, which is what libraries count."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def usable_cpus(root: str | os.PathLike = "/") -> int:
    """Return how many CPUs this process may keep busy: its affinity or its container's quota.

    A quota of 2.5 CPUs counts as 2: a third thread would make the kernel stop all three at times.
    """
    count = visible_cpus()
    for group in _cgroups(root):
        # "200000 100000" or "max 100000": microseconds of CPU time in each period.
        quota, period = map(_number, read_system_file(group / "cpu.max").partition(" ")[::2])
        if quota and period:
            count = min(count, quota // period)
    return max(count, 1)


def _memory(root: str | os.PathLike) -> tuple[int, int]:
    """Return bytes of RAM in all and available, on the machine and in its control groups."""
    import psutil

    total, available = psutil.virtual_memory().total, psutil.virtual_memory().available
    for group in _cgroups(root):
        bound = _number(read_system_file(group / "memory.max"))
        if bound is None:
            continue
        used = _number(read_system_file(group / "memory.current")) or 0
        # The file cache counts as used; what was not read lately is dropped when memory is needed.
        stat = read_system_file(group / "memory.stat")
        if cache := re.search(r"^inactive_file (\d+)$", stat, re.MULTILINE):
            used = max(used - int(cache[1]), 0)
        total, available = min(total, bound), min(available, bound - used)
    return total, max(available, 0)


def memory_total(root: str | os.PathLike = "/") -> int:
    """Return the bytes of RAM of this machine, or its container's limit where that is less."""
    return _memory(root)[0]


def memory_available(root: str | os.PathLike = "/") -> int:
    """Return the bytes of RAM that can be taken now without swapping, in the container's limit."""
    return _memory(root)[1]


def sysctl(name: str) -> str:
    """Return the value of a macOS system variable, "" if there is none."""
    try:
        command = ["sysctl", "-n", name]
        return subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


@functools.cache
def cpu_features(root: str | os.PathLike = "/", system: str = sys.platform) -> dict[str, bool]:
    """Return which of `CPU_FEATURES` this CPU has; those that cannot be told have no entry."""
    if system == "darwin":
        values = {name: sysctl(key) for name, (_, key, _) in CPU_FEATURES.items() if key}
        return {name: value == "1" for name, value in values.items() if value}
    text = read_system_file(Path(root) / "proc/cpuinfo")
    if line := re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE):
        return {name: flag in line[1].split() for name, (flag, _, _) in CPU_FEATURES.items()}
    import torch  # asks the CPU itself where the system says little: Windows has no name for VNNI

    told = torch.cpu.get_capabilities()
    return {name: bool(told[key]) for name, (_, _, key) in CPU_FEATURES.items() if key in told}


def has_int8_dot_product() -> bool | None:
    """Return whether this CPU's int8 products have room for their sums; None if nobody can tell.

    VNNI and AMX on x86 and the dot product on Arm have it. Other CPUs add pairs of products in 16
    bits, which can silently cut a sum off.
    """
    names = ("avx512_vnni", "avx_vnni", "amx_int8", "arm_dotprod", "arm_i8mm")
    features = cpu_features()
    return any(features.get(name) for name in names) if features else None


def choose_dtype(device):
    """Return the torch dtype of 16 bits that a torch.device has units for, else float32."""
    import torch

    if device.type == "cuda":
        generation, _ = torch.cuda.get_device_capability(device)
        if generation == 7:
            return torch.float16
        units = generation > 7
    else:
        features = cpu_features() if device.type == "cpu" else {}
        units = any(features.get(unit) for unit in ("avx512_bf16", "amx_bf16", "arm_bf16"))
    return torch.bfloat16 if units else torch.float32


def devices() -> list[str]:
    """Return the devices torch can compute on, best first and "cpu" last: ["cuda:0", "cpu"]."""
    import torch

    found = [name for name, usable in cuda_devices().items() if usable]
    if torch.backends.mps.is_available():
        found.append("mps")
    return [*found, "cpu"]


def cuda_devices() -> dict[str, bool]:
    """Return the CUDA devices ("cuda:0"), and whether this build of torch has code for each."""
    import torch

    if not torch.cuda.is_available():  # with too old a driver there are devices, but none to use
        return {}
    codes = [] if torch.version.hip else torch.cuda.get_arch_list()

    def usable(index: int) -> bool:
        return any(runs_on(code, torch.cuda.get_device_capability(index)) for code in codes)

    places = range(torch.cuda.device_count())
    return {f"cuda:{index}": not codes or usable(index) for index in places}


def runs_on(code: str, capability: tuple[int, int]) -> bool:
    """Return whether a GPU of a compute capability runs code for "sm_80", "sm_90a", "compute_90".

    Machine code (sm) runs within its major version, from its minor version on: sm_80 on 8.6, and
    not on 9.0. The driver compiles PTX (compute) for every later GPU. Code that ends in a letter
    is for one GPU ("a") or its family ("f"); a Jetson takes only code of its own, as nobody else.
    """
    kind, digits, letter = re.fullmatch(r"([a-z]+)_(\d+)([af]?)", code).groups()
    built = divmod(int(digits), 10)
    jetson = {(5, 3), (6, 2), (7, 2), (8, 7)} & {built, capability}
    if letter == "a" or (jetson and kind == "sm"):
        return built == capability
    if kind == "compute" and not letter:
        return built <= capability
    return built[0] == capability[0] and built[1] <= capability[1]


def agrees_with_cpu(device: Any, compute: Callable[[str], Any]) -> tuple[bool, str]:
    """Return whether a device computes what the CPU computes, and a sentence for the reader.

    `compute` takes a device's name and returns numbers of about 1 that were computed there, as an
    array or a tensor on the CPU.
    """
    device = str(device)
    if device == "cpu":
        return True, "no GPU is in use, so there is nothing to compare with the CPU"
    try:
        off = float(abs(compute(device) - compute("cpu")).max())
    except RuntimeError as error:
        return False, f"{device} fails, so go on on the CPU: {str(error).splitlines()[0]}"
    if off < 1e-3:  # wrong masks or kernels move more than rounding does; NaN is not less
        return True, f"{device} computes what the CPU computes, to within {off:.0e}"
    return False, f"{device} computes wrong numbers, off by {off:.1e}: go on on the CPU"


def synchronize() -> None:
    """Wait until every accelerator in use (CUDA, MPS) has done what it was given."""
    torch = sys.modules.get("torch")
    if not torch:  # nobody can have used an accelerator
        return
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for index in range(torch.cuda.device_count()):
            # A device without memory has no work, and waiting would start it up.
            if torch.cuda.memory_reserved(index):
                torch.cuda.synchronize(index)
    if torch.backends.mps.is_available():
        torch.mps.synchronize()


def versions() -> dict[str, str]:
    """Return the versions of Python and of those of `PACKAGES` that are installed."""
    found = {name: metadata.version(name) for name in PACKAGES if importlib.util.find_spec(name)}
    return {"python": platform.python_version(), **found}


def cpu_name(root: str | os.PathLike = "/") -> str:
    """Return the CPU's name as the operating system gives it."""
    text = read_system_file(Path(root) / "proc/cpuinfo")
    if line := re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE):
        return line[1]
    mac = sysctl("machdep.cpu.brand_string") if sys.platform == "darwin" else ""
    return mac or platform.processor() or platform.machine()


def cuda_names(usable: bool = True) -> list[str]:
    """Return the names of the CUDA devices that torch, if it was imported, can use or not."""
    torch = sys.modules.get("torch")
    found = cuda_devices() if torch else {}
    return [torch.cuda.get_device_name(device) for device in found if found[device] == usable]


def describe_machine(threads: int | None = None) -> str:
    """Return one line that names what a measurement depends on: hardware, threads, versions.

    `threads` is the number the measurement used; by default torch's, where torch is in use.
    """
    torch, found, gpus = sys.modules.get("torch"), versions(), cuda_names()
    threads = threads or (torch.get_num_threads() if torch else usable_cpus())
    if torch and torch.backends.mps.is_available():
        gpus.append("Apple MPS")
    features = [name for name, present in cpu_features().items() if present]
    packages = [f"{name} {found[name]}" for name in PACKAGES[:3] if name in found]
    return (
        f"{cpu_name()} ({', '.join([platform.machine(), *features])}) · "
        f"{usable_cpus()} usable CPUs, {threads} threads · "
        f"{memory_total() / 2**30:.1f} GiB RAM · {', '.join(gpus) or 'no GPU'} · "
        f"{platform.system()}, Python {found['python']} · {', '.join(packages)}"
    )
