"""What this machine offers.

CPUs and memory as the container allows them, CPU features, devices, versions.

Every notebook uses it; `python -m helpers doctor` prints it, and `helpers.timing` puts
`describe_machine()` below each table. Importing this module does not import torch. Functions that
read Linux's files take `root`, the directory that stands for `/`.
"""

import ctypes
import functools
import importlib.util
import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import psutil

PACKAGES = (
    "torch",
    "transformers",
    "onnxruntime",
    "onnx",
    "torchao",
    "peft",
    "tokenizers",
    "numpy",
)

# Our name of each feature that decides how fast int8 and bfloat16 run: its name in Linux's
# /proc/cpuinfo, in macOS's sysctl, and its number in Windows' IsProcessorFeaturePresent; None where
# that system cannot tell.
_FEATURES = {
    "avx2": ("avx2", "hw.optional.avx2_0", 40),
    "avx512": ("avx512f", "hw.optional.avx512f", 41),
    "avx512_vnni": ("avx512_vnni", None, None),
    "avx_vnni": ("avx_vnni", None, None),
    "avx512_bf16": ("avx512_bf16", None, None),
    "amx_int8": ("amx_int8", None, None),
    "amx_bf16": ("amx_bf16", None, None),
    "arm_dotprod": ("asimddp", "hw.optional.arm.FEAT_DotProd", 43),
    "arm_i8mm": ("i8mm", "hw.optional.arm.FEAT_I8MM", None),
    "arm_bf16": ("bf16", "hw.optional.arm.FEAT_BF16", None),
}


def _read(path: Path) -> str:
    """The text of a small system file, "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(text: str) -> int | None:
    """The number in a control group's file.

    None for "max", -1 (both: no limit) and for an unreadable file.
    """
    return int(text) if text.isdigit() else None


def _cgroups(controller: str, root: str | os.PathLike) -> list[Path]:
    """The directories of this process's control groups for `controller`.

    A limit in any of them binds.

    In a container the path in /proc/self/cgroup may be the host's and not exist below the mount;
    the existing ones of its parents, at least the mount itself, are then what is left.
    """
    base, found = Path(root) / "sys/fs/cgroup", []
    for line in _read(Path(root) / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(",") or not controllers:
            # Version 2 has one tree (number 0, no controllers); beside version 1 it is mounted as
            # "unified".
            names = (controllers, controller) if controllers else ("unified",)
            mount = next((base / name for name in names if (base / name).is_dir()), base)
            inside = Path(*(part for part in path.split("/") if part != ".."))
            found += [mount / inside, *(mount / parent for parent in inside.parents)]
    return [path for path in dict.fromkeys(found) if path.is_dir()]


def usable_cpus(root: str | os.PathLike = "/") -> int:
    """How many CPUs this process may keep busy.

    The smaller of its affinity and its container's quota, at least 1.

    A quota of 2.5 CPUs counts as 2: a third thread would only make the kernel stop all three part
    of the time.
    """
    count = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    for group in _cgroups("cpu", root):
        quota, _, period = _read(group / "cpu.max").partition(
            " "
        )  # version 2: "200000 100000" or "max 100000"
        quota = _number(quota or _read(group / "cpu.cfs_quota_us"))
        period = _number(period or _read(group / "cpu.cfs_period_us"))
        if quota and period:
            count = min(count, quota // period)
    return max(count, 1)


def _memory(root: str | os.PathLike) -> tuple[int, int]:
    """Return bytes of RAM in all and available, on the machine and in its control groups."""
    total, available = psutil.virtual_memory().total, psutil.virtual_memory().available
    for group in _cgroups("memory", root):
        # The cache of files read counts as used; what of it was not read lately is dropped when
        # memory is needed. Version 1 lists the group's own share first and then the total with the
        # groups below it.
        cache = re.findall(
            r"^(?:total_)?inactive_file (\d+)$", _read(group / "memory.stat"), re.MULTILINE
        )
        for limit, usage in (
            ("max", "current"),
            ("limit_in_bytes", "usage_in_bytes"),
        ):  # version 2, version 1
            if (bound := _number(_read(group / f"memory.{limit}"))) is not None:
                used = (_number(_read(group / f"memory.{usage}")) or 0) - int([0, *cache][-1])
                total, available = min(total, bound), min(available, bound - max(used, 0))
    return total, max(available, 0)


def memory_total(root: str | os.PathLike = "/") -> int:
    """Bytes of RAM this process could have.

    The machine's, or its container's limit where that is less.
    """
    return _memory(root)[0]


def memory_available(root: str | os.PathLike = "/") -> int:
    """Return the bytes of RAM that can be taken now without swapping, in the container's limit."""
    return _memory(root)[1]


def _sysctl(name: str) -> str:
    """The value of a macOS system variable, "" if there is none."""
    try:
        return subprocess.run(
            ["sysctl", "-n", name], capture_output=True, text=True, timeout=5
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


@functools.cache
def cpu_features(root: str | os.PathLike = "/", system: str = sys.platform) -> dict[str, bool]:
    """Which instructions for small numbers the CPU has, for example {"avx2".

    True, "avx512_vnni": False, ...}.

    A feature that the operating system cannot tell about has no entry: use `.get(name)`, None means
    unknown.
    """
    if system == "win32":
        present = ctypes.windll.kernel32.IsProcessorFeaturePresent
        return {name: bool(present(number)) for name, (_, _, number) in _FEATURES.items() if number}
    if system == "darwin":
        values = {name: _sysctl(key) for name, (_, key, _) in _FEATURES.items() if key}
        return {name: value == "1" for name, value in values.items() if value}
    line = re.search(
        r"^(?:flags|Features)\s*:(.*)$", _read(Path(root) / "proc/cpuinfo"), re.MULTILINE
    )
    return (
        {name: flag in line[1].split() for name, (flag, _, _) in _FEATURES.items()} if line else {}
    )


def has_int8_dot_product() -> bool:
    """Whether this CPU has int8 products whose sums have room.

    VNNI or AMX on x86, dot product on Arm.

    Others add pairs of products in 16 bits, which can cut a sum off without a word; False also
    where nobody can tell.
    """
    return any(
        cpu_features().get(name)
        for name in ("avx512_vnni", "avx_vnni", "amx_int8", "arm_dotprod", "arm_i8mm")
    )


def devices() -> list[str]:
    """Names of the devices torch can compute on, best first, for example ["cuda:0", "cpu"].

    "cpu" is always last.
    """
    import torch

    cuda = (
        [f"cuda:{i}" for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    return [*cuda, *(["mps"] if torch.backends.mps.is_available() else []), "cpu"]


def synchronize() -> None:
    """Waits until every accelerator in use (CUDA, MPS) has done what it was given.

    Returns at once without one.
    """
    torch = sys.modules.get(
        "torch"
    )  # nobody can have used an accelerator before torch was imported
    if torch and torch.cuda.is_available() and torch.cuda.is_initialized():
        for index in range(torch.cuda.device_count()):
            if torch.cuda.memory_reserved(
                index
            ):  # else it has no work, and waiting would start it up
                torch.cuda.synchronize(index)
    if torch and torch.backends.mps.is_available():
        torch.mps.synchronize()


def versions() -> dict[str, str]:
    """Versions of Python and of the packages whose speed the notebooks measure.

    Missing ones have no entry.
    """
    installed = {
        name: metadata.version(name) for name in PACKAGES if importlib.util.find_spec(name)
    }
    return {"python": platform.python_version(), **installed}


def cpu_name(root: str | os.PathLike = "/") -> str:
    """The CPU's name as the operating system gives it."""
    line = re.search(r"^model name\s*:\s*(.+)$", _read(Path(root) / "proc/cpuinfo"), re.MULTILINE)
    mac = _sysctl("machdep.cpu.brand_string") if sys.platform == "darwin" else ""
    return line[1] if line else mac or platform.processor() or platform.machine()


def describe_machine(threads: int | None = None) -> str:
    """One line that names what a measurement depends on: hardware, threads, versions.

    `threads` is the number the measurement used; by default torch's number, where torch is in use.
    """
    torch, found = sys.modules.get("torch"), versions()
    threads = threads or (torch.get_num_threads() if torch else usable_cpus())
    cpu = ", ".join(
        [platform.machine(), *(name for name, present in cpu_features().items() if present)]
    )
    gpus = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch else []
    )
    gpus += ["Apple MPS"] if torch and torch.backends.mps.is_available() else []
    packages = [
        f"{name} {found[name]}"
        for name in ("torch", "transformers", "onnxruntime")
        if name in found
    ]
    return (
        f"{cpu_name()} ({cpu}) · {usable_cpus()} usable CPUs, {threads} threads · "
        f"{memory_total() / 2**30:.1f} GiB RAM · {', '.join(gpus) or 'no GPU'} · "
        f"{platform.system()}, Python {found['python']} · {', '.join(packages)}"
    )
