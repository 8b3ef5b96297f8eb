"""How long a notebook runs, and what its kernel holds at its peak."""

import subprocess
import threading
import time
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Run:
    """How a command that runs a notebook ended: exit status, its output, seconds, and the peak memory in bytes."""

    status: int
    output: str
    seconds: float
    peak: int


def _kernels_memory(root: psutil.Process) -> int:
    """Resident bytes of the Jupyter kernels below a process and of all their children, now."""
    family: dict[int, psutil.Process] = {}
    for process in root.children(recursive=True):
        try:
            if any("ipykernel" in part for part in process.cmdline()):
                family.update(
                    {child.pid: child for child in [process, *process.children(recursive=True)]}
                )
        except psutil.Error:  # ended between the listing and the look
            continue
    total = 0
    for process in family.values():
        try:
            total += 0 if _starting(process) else process.memory_info().rss
        except psutil.Error:
            continue
    return total


def _starting(process: psutil.Process) -> bool:
    """Whether a process was forked just now and runs no program of its own yet: its memory is still its parent's."""
    parent = process.parent()
    # Two seconds, since psutil's start of a process can be one too early: it counts from a boot time in whole seconds.
    return (
        bool(parent)
        and process.cmdline() == parent.cmdline()
        and time.time() - process.create_time() < 2
    )


def measure(command: list[str], timeout: float = 600, **popen) -> Run:
    """Run a command that executes a notebook, watching the memory of the kernel and of its children (every 50 ms).

    The runner itself (pytest, nbclient) is not counted: on Binder and in JupyterLab it is not there. Pages shared by
    several processes count once for each, so the peak is an upper bound. A run longer than timeout (seconds) is
    killed with all its children and has status -9.
    """
    start, peak = time.monotonic(), 0
    pipe = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
        "encoding": "utf-8",
    }
    with subprocess.Popen(command, **pipe, **popen) as process:
        root, chunks = psutil.Process(process.pid), []
        reader = _drain(process, chunks)
        while process.poll() is None:
            peak = max(peak, _kernels_memory(root))
            if time.monotonic() - start > timeout:
                for child in root.children(recursive=True):
                    child.kill()
                process.kill()
            time.sleep(0.05)
        seconds = time.monotonic() - start
        reader.join(5)
    return Run(process.returncode, "".join(chunks), seconds, peak)


def _drain(process: subprocess.Popen, chunks: list[str]):
    """Read a process's output in a thread: a full pipe would stop the process that is being measured."""
    thread = threading.Thread(target=lambda: chunks.extend(process.stdout), daemon=True)
    thread.start()
    return thread
