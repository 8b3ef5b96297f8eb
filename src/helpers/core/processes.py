"""What a process holds in memory, and calls in a process of their own."""

import multiprocessing
import re
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from helpers.core import files

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


def run_in_subprocess(function: Callable, *arguments, **options):
    """Call a function in a process of its own, so that all the memory it takes is given back.

    The function must be importable by name; its arguments and what it returns or raises are
    pickled.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments, **options).result()
