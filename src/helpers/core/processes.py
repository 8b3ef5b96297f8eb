"""What processes hold in memory, and calls in a process of their own."""

import multiprocessing
import re
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from helpers.core import files, machine

import psutil


def process_memory() -> int:
    """Return the bytes of RAM (resident set) that this process holds now."""
    return psutil.Process().memory_info().rss


def process_peak() -> int:
    """Return the bytes of RAM (resident set) that this process held at its peak so far."""
    status = files.read_system_file(Path("/proc/self/status"))
    peak = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    if peak:  # getrusage would also count the parent, from whose memory the process was started
        return int(peak[1]) * 1024
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def warn_of_other_kernels() -> None:
    """Print a line if other notebooks are open and leave too little memory for one more.

    When memory runs out, the system ends a kernel, and nobody says why.
    """
    free = machine.memory_available()
    if free > 1.5e9:  # the peak of the notebook that takes most
        return
    commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    if sum("ipykernel_launcher" in command for command in commands) > 1:
        print(f"Only {free / 1e9:.1f} GB of memory is free, and other notebooks are running:")
        print("shut down their kernels first, or this one may die in silence.")


def run_in_subprocess(function: Callable, *arguments, **options):
    """Call a function in a process of its own, so that all the memory it takes is given back.

    The function must be importable by name; its arguments and what it returns or raises are
    pickled.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments, **options).result()
