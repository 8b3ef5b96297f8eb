"""What a process holds in memory, and calls in a process of their own."""

import contextlib
import multiprocessing
import re
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from helpers.core.machine import _read

import psutil


def process_memory(children: bool = False) -> int:
    """Bytes of RAM (resident set) that this process holds now.

    With `children`, its child processes' too.
    """
    me = psutil.Process()
    total = me.memory_info().rss
    for child in me.children(recursive=True) if children else []:
        with contextlib.suppress(psutil.Error):  # it ended between the two calls
            total += child.memory_info().rss
    return total


def process_peak() -> int:
    """Bytes of RAM (resident set) that this process held at its peak so far."""
    peak = re.search(r"^VmHWM:\s+(\d+) kB$", _read(Path("/proc/self/status")), re.MULTILINE)
    if peak:  # getrusage would also count the parent, from whose memory the process was started
        return int(peak[1]) * 1024
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def run_in_subprocess(function: Callable, *arguments, **options):
    """Call a function in a process of its own, so that all the memory it takes is given back.

    Args:
        function: One that can be imported by name; arguments and result are sent over.
        *arguments: Of the function.
        **options: Of the function.

    Returns:
        What the function returns.

    Raises:
        Exception: Whatever the function raises.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments, **options).result()
