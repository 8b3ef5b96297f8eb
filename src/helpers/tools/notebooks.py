"""What the notebooks and recipes say of themselves: title, needs, number.

Used by the doctor (notebook 00), the benchmark, the tables in README and 00, and the tests.
"""

import ast
import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from helpers.core import files

ROOT = files.ROOT
NOTEBOOKS = ROOT / "notebooks"
PAGES = "[0-9][0-9]_*.ipynb"

_NEEDS = re.compile(
    r"^\*\*Needs:\*\* about (?P<seconds>\d+) s on two cores · "
    r"(?P<gigabytes>\d+\.\d) GB of RAM at its peak · "
    r"GPU: (?P<gpu>no|optional) · Models and texts: (?P<assets>[\w, -]+)$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Lesson:
    """A notebook and the needs that its first cell states."""

    path: Path
    title: str
    seconds: int  # to run all cells on two cores
    gigabytes: float  # of memory at the peak, 10**9 bytes each
    gpu: str  # "no" or "optional"
    assets: tuple[str, ...]  # names of models and texts in the catalogue

    @property
    def number(self) -> str:
        """Return the number, such as "07"."""
        return self.path.name[:2]


def read(path: Path) -> Lesson:
    """Read the title and the needs from a notebook's first cell; ValueError without them."""
    first = json.loads(path.read_text(encoding="utf-8"))["cells"][0]
    text = "".join(first["source"])
    title, needs = re.match(r"# (.+)", text), _NEEDS.search(text)
    if first["cell_type"] != "markdown" or not title or not needs:
        message = "the first cell must hold '# a title' and a line '**Needs:** about ...'"
        raise ValueError(f"{path.name}: {message}")
    names = [] if needs["assets"] == "none" else re.split(r",\s*", needs["assets"])
    numbers = int(needs["seconds"]), float(needs["gigabytes"])
    return Lesson(path, title[1], *numbers, needs["gpu"], tuple(names))


def pages(folder: Path = NOTEBOOKS) -> list[Path]:
    """Return a folder's numbered notebooks in order, without what `reset` kept beside them."""
    found = sorted(folder.glob(PAGES))
    return [path for path in found if ".mine-" not in path.name]


def lessons() -> list[Lesson]:
    """Return all numbered notebooks in order, without their solutions; none without a checkout."""
    return [read(path) for path in pages()]


def guard() -> str:
    """Return how the first code cell of every notebook begins: it says what a lone file lacks."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    home = project.get("urls", {}).get("Repository", "the whole tutorial")
    text = (files.DATA / "templates" / "guard.txt").read_text(encoding="utf-8")
    return text.replace("HOME", home).rstrip()


def recipes() -> dict[str, Path]:
    """Return the recipes by the number of their notebook, which their first line names."""
    found = {}
    for path in sorted((files.DATA.parent / "recipes").glob("[!_]*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        number = re.search(r"notebook (\d\d)", text)
        if not number:
            raise ValueError(f"{path.name}: its docstring must name its notebook: 'notebook 07'")
        found[number[1]] = path
    return dict(sorted(found.items()))


def first_sentence(path: Path) -> str:
    """Return what a recipe does: its docstring's first line, without the notebook's number."""
    line = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))).splitlines()[0]
    return re.sub(r"\s*\(notebook \d\d\)", "", line)
