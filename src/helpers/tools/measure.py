"""How long a notebook runs, and what its kernel holds at its peak."""

import contextlib
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Run:
    """How a command that runs a notebook ended."""

    status: int  # -9 after a timeout
    output: str
    seconds: float
    peak: int  # bytes of memory of the kernel and its children


def _kernels(root: psutil.Process) -> set[psutil.Process]:
    """Return the Jupyter kernels below a process, and all their children."""
    family = set()
    for process in root.children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it ended between the listing and the look
            if any("ipykernel" in part for part in process.cmdline()):
                family |= {process, *process.children(recursive=True)}
    return family


def _memory(processes: set[psutil.Process]) -> int:
    """Return the resident bytes of processes, now."""
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            total += 0 if _starting(process) else process.memory_info().rss
    return total


def _starting(process: psutil.Process) -> bool:
    """Whether a process was just forked and runs no program yet: its memory is its parent's."""
    parent = process.parent()
    if parent is None or process.cmdline() != parent.cmdline():
        return False
    # Two seconds: psutil counts from a boot time in whole seconds, so a start can be one early.
    return time.time() - process.create_time() < 2


@contextlib.contextmanager
def temporary_folder() -> Iterator[dict[str, str]]:
    """Give the environment of a process its own folder for temporary files, removed afterwards.

    A kernel that is killed, as nbval does with each, cannot remove its files itself.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), folder)


def measure(command: list[str], timeout: float = 600, env: dict | None = None, **popen) -> Run:
    """Run a command that executes a notebook, looking at its kernel's memory every 50 ms.

    The runner itself (pytest, nbclient) is not counted: on Binder and in JupyterLab it is not
    there. Memory shared by several processes counts once for each: the peak is an upper bound.
    After `timeout` seconds the command is killed with all its children. `env` holds what is added
    to the environment; temporary files lie in a folder that is removed.
    """
    start, peak = time.monotonic(), 0
    popen |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8"}
    with (
        temporary_folder() as variables,
        subprocess.Popen(command, env=variables | (env or {}), **popen) as process,
    ):
        root, chunks = psutil.Process(process.pid), []
        # A full pipe would stop the process that is being measured.
        reader = threading.Thread(target=lambda: chunks.extend(process.stdout), daemon=True)
        reader.start()
        while process.poll() is None:
            peak = max(peak, _memory(_kernels(root)))
            if time.monotonic() - start > timeout:
                for child in root.children(recursive=True):
                    child.kill()
                process.kill()
            time.sleep(0.05)
        seconds = time.monotonic() - start
        reader.join(5)
    return Run(process.returncode, "".join(chunks), seconds, peak)
