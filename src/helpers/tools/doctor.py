"""Is this machine ready? One line for each question and each notebook; notebook 00 shows it."""

import contextlib
import importlib.metadata
import re
import shutil
import sys
from dataclasses import dataclass

from helpers.core import cuda, files, machine
from helpers.lessons import device_errors
from helpers.models import assets, catalogue, locate
from helpers.tools import notebooks

import pandas
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

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


def _version(name: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name).split("+")[0]
    return None


def _packages() -> Finding:
    """Compare the installed versions with the needed ones, and widgets' two sides with each other.

    In .venv those of constraints.txt are needed; elsewhere, what the package's own bounds allow.
    """
    own = files.in_own_environment()
    constraints = files.ROOT / "constraints.txt"
    pins, wrong, lines = {}, {}, []
    if own:
        text = constraints.read_text(encoding="utf-8")
        pins = dict(re.findall(r"^([\w-]+)(==[\w.]+)", text, re.MULTILINE))
    for package in ("bert-on-any-device", "ipywidgets"):  # the latter names its browser side
        lines += importlib.metadata.requires(package) if _version(package) else []
    for wanted in map(Requirement, lines):
        needs = pins.get(canonicalize_name(wanted.name), str(wanted.specifier))
        found = _version(wanted.name) or "missing"
        fits = found in SpecifierSet(needs, prereleases=True)  # as in NVIDIA's containers
        if not fits and (not wanted.marker or wanted.marker.evaluate()):
            wrong[f'"{wanted.name}{needs}"'] = f"{wanted.name} {found} (needs {needs})"
    if _version("helpers"):  # a stranger's on the package index, where ours has another name
        hides = "another project's helpers hides ours: `pip uninstall helpers`, install ours anew"
        return Finding(False, "packages", hides)
    if wrong:
        todo = f"`pip install {' '.join(wrong)}` mends it"
        if constraints.exists():
            todo = f"`pip install -e . -c constraints.txt` in {files.ROOT} mends it"
        todo = f"`{files.command('lab')}` installs what is missing" if own else todo
        return Finding(False, "packages", f"{', '.join(wrong.values())}; {todo}")
    found = [f"{name} {version}" for name, version in machine.versions().items()]
    return Finding(True, "packages", ", ".join(found))


def _devices() -> list[Finding]:
    """Say which devices torch can compute on and whether it is right, or why it does not start."""
    try:
        devices = machine.devices()
    except (ImportError, OSError) as error:  # as on Windows without Microsoft's C++ runtime
        return [Finding(False, "devices", f"{error!r}: {device_errors.explain(error)}")]
    from helpers.exercises import tiny_models  # loads transformers, for seconds

    names = f"{', '.join(devices)} (CUDA: {cuda.cuda_status().reason})"
    agrees, sentence = machine.agrees_with_cpu(devices[0], tiny_models.run_on)  # a small BERT
    return [Finding(True, "devices", names), Finding(agrees, "results", sentence)]


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
        wants.append(f"needs {', '.join(missing)}: run `{files.command('fetch')}`")
    if wants:
        return Finding(False, lesson.path.stem, "; ".join(wants))
    gpu = ", uses a GPU if there is one" if lesson.gpu == "optional" else ""
    needs = f"about {lesson.seconds} s, {lesson.gigabytes} GB at its peak{gpu}"
    return Finding(True, lesson.path.stem, needs)


def examine() -> list[Finding]:
    """Look at this machine, now, without asking the network."""
    features = machine.cpu_features()
    units = [name for name, present in features.items() if present]
    cpus = f"{machine.usable_cpus()} usable; for int8 speed: "
    cpus += ", ".join(units) or ("none" if features else "unknown")
    total, free = machine.memory_total(), machine.memory_available()
    folder = locate.root()
    while not folder.exists():
        folder = folder.parent
    disk, states = shutil.disk_usage(folder).free, assets.status()
    version = ".".join(map(str, sys.version_info[:3]))
    get = f"not here yet; `{files.command('fetch')}` gets it"
    lessons = [_notebook(lesson, free, disk, states) for lesson in notebooks.lessons()]
    return [
        Finding(True, "Python", version),
        _packages(),
        *_devices(),
        Finding(True, "CPUs", cpus),
        Finding(True, "memory", f"{free / GB:.1f} GB free of {total / GB:.1f} GB"),
        Finding(True, "disk", f"{disk / GB:.1f} GB free where models and texts are kept"),
        *(Finding(s != "missing", n, s.replace("missing", get)) for n, s in states.items()),
        *(lessons or [Finding(True, "notebooks", "none here: they are in the repository")]),
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
