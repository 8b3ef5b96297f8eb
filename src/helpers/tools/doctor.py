"""Is this machine ready? One line for each question and each notebook; notebook 00 shows it."""

import contextlib
import importlib.metadata
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from helpers.core import cuda, machine
from helpers.models import assets, catalogue, locate
from helpers.tools import browser, notebooks

import pandas
from packaging.requirements import Requirement

GB = 10**9
# JupyterLab's own server, beside the kernel that runs a notebook (116 MB with one notebook open).
LAB_BYTES = 150 * 10**6


@dataclass(frozen=True)
class Finding:
    """One line of the report: ready or not, the subject, and what was found or what to do."""

    ok: bool
    subject: str
    detail: str

    def __str__(self) -> str:
        return f"{'OK   ' if self.ok else 'TO DO'}  {self.subject}: {self.detail}"


def _packages() -> Finding:
    """Compare the installed versions with the pins, and widgets' two sides with each other."""
    wrong, lines = [], importlib.metadata.requires("bert-on-any-device") or []
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # the pins name it as well
        lines += importlib.metadata.requires("ipywidgets")  # jupyterlab_widgets is its browser side
    for wanted in map(Requirement, lines):
        found = "missing"
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found = importlib.metadata.version(wanted.name).split("+")[0]
        if found not in wanted.specifier and (not wanted.marker or wanted.marker.evaluate()):
            wrong.append(f"{wanted.name} {found} (needs {wanted.specifier})")
    if wrong:
        todo = "; `python3 tutorial.py lab` installs what is missing"
        return Finding(False, "packages", ", ".join(wrong) + todo)
    found = [f"{name} {version}" for name, version in machine.versions().items()]
    return Finding(True, "packages", ", ".join(found))


def _results(device: str) -> Finding:
    """Say whether a small BERT computes the same on the best device as on the CPU."""
    from helpers.exercises import tiny_models  # loads transformers, for seconds

    agrees, sentence = machine.agrees_with_cpu(device, tiny_models.run_on)
    return Finding(agrees, "results", sentence)


def _notebook(lesson: notebooks.Lesson, memory: int, disk: int, states: dict) -> Finding:
    """Say whether a notebook has the memory, the disk and the models that it needs."""
    need = int(lesson.gigabytes * GB) + LAB_BYTES
    missing = [name for name in lesson.assets if states[name] == "missing"]
    size = sum(catalogue.CATALOGUE[name].size for name in missing)
    wants = []
    if memory < need:
        wants.append(
            f"needs {need / GB:.1f} GB of memory, {memory / GB:.1f} GB is free: shut down other "
            "kernels (Kernel > Shut Down All Kernels) or close other programs"
        )
    if disk < size:
        names = ", ".join(missing)
        wants.append(f"needs {size / GB:.1f} GB of disk for {names}, {disk / GB:.1f} GB is free")
    elif missing:
        wants.append(f"needs {', '.join(missing)}: run `python3 tutorial.py fetch`")
    if wants:
        return Finding(False, lesson.path.stem, "; ".join(wants))
    gpu = ", uses a GPU if there is one" if lesson.gpu == "optional" else ""
    needs = f"about {lesson.seconds} s, {lesson.gigabytes} GB at its peak{gpu}"
    return Finding(True, lesson.path.stem, needs)


def examine() -> list[Finding]:
    """Look at this machine, now, without asking the network."""
    status, devices, features = cuda.cuda_status(), machine.devices(), machine.cpu_features()
    units = [name for name, present in features.items() if present]
    cpus = f"{machine.usable_cpus()} usable; for int8 speed: "
    cpus += ", ".join(units) or ("none" if features else "unknown")
    total, free = machine.memory_total(), machine.memory_available()
    folder = locate.root()
    while not folder.exists():
        folder = folder.parent
    disk, states = shutil.disk_usage(folder).free, assets.status()
    version = ".".join(map(str, sys.version_info[:3]))
    return [
        Finding(True, "Python", version),
        _packages(),
        Finding(True, "devices", f"{', '.join(devices)} (CUDA: {status.reason})"),
        Finding(True, "CPUs", cpus),
        Finding(True, "memory", f"{free / GB:.1f} GB free of {total / GB:.1f} GB"),
        Finding(True, "disk", f"{disk / GB:.1f} GB free where models and texts are kept"),
        _results(devices[0]),
        Finding(True, "test browser", Path(browser.find() or "none").stem),
        *(Finding(state != "missing", name, state) for name, state in states.items()),
        *(_notebook(lesson, free, disk, states) for lesson in notebooks.lessons()),
    ]


def table() -> pandas.DataFrame:
    """Return the report as a table for a notebook: columns ready, what, found."""
    rows = [("OK" if f.ok else "to do", f.subject, f.detail) for f in examine()]
    return pandas.DataFrame(rows, columns=["ready", "what", "found"]).set_index("what")


def main() -> int:
    """Print the report; the exit status is 0 if everything is ready."""
    findings = examine()
    print(*findings, sep="\n")
    return 0 if all(finding.ok for finding in findings) else 1
