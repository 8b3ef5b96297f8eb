"""What each notebook says it needs, read from the notebook itself; and what a run of it really took.

Used by the doctor (notebook 00), the benchmark and the tests, so that the page, the README and the measurement agree.
"""

import json
import re
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"

_NEEDS = re.compile(
    r"^\*\*Needs:\*\* about (?P<seconds>\d+) s on two cores · (?P<gigabytes>\d+\.\d) GB of RAM at its peak · "
    r"GPU: (?P<gpu>no|optional) · Models and texts: (?P<assets>[\w, -]+)$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Lesson:
    """A notebook and the needs that its first cell states (seconds on two cores, GB = 10**9 bytes at the peak)."""

    path: Path
    title: str
    seconds: int
    gigabytes: float
    gpu: str
    assets: tuple[str, ...]


def read(path: Path) -> Lesson:
    """Read the title and the needs from a notebook's first cell; ValueError says what is missing there."""
    first = json.loads(path.read_text(encoding="utf-8"))["cells"][0]
    text = "".join(first["source"])
    title, needs = re.match(r"# (.+)", text), _NEEDS.search(text)
    if first["cell_type"] != "markdown" or not title or not needs:
        raise ValueError(f"{path.name}: the first cell must hold '# a title' and a line '**Needs:** about ...'")
    names = () if needs["assets"] == "none" else tuple(name.strip() for name in needs["assets"].split(","))
    return Lesson(path, title[1], int(needs["seconds"]), float(needs["gigabytes"]), needs["gpu"], names)


def lessons() -> list[Lesson]:
    """All numbered notebooks in order, without their solutions."""
    return [read(path) for path in sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))]


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
                family.update({child.pid: child for child in [process, *process.children(recursive=True)]})
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
    return bool(parent) and process.cmdline() == parent.cmdline() and time.time() - process.create_time() < 2


def measure(command: list[str], timeout: float = 600, **popen) -> Run:
    """Run a command that executes a notebook, watching the memory of the kernel and of its children (every 50 ms).

    The runner itself (pytest, nbclient) is not counted: on Binder and in JupyterLab it is not there. Pages shared by
    several processes count once for each, so the peak is an upper bound. A run longer than timeout (seconds) is
    killed with all its children and has status -9.
    """
    start, peak = time.monotonic(), 0
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "encoding": "utf-8"}
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
