"""What each notebook says it needs, read from the notebook itself; and what a run of it really took.

Used by the doctor (notebook 00), the benchmark and the tests, so that the page, the README and the measurement agree.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from helpers.core import files

ROOT = files.ROOT
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
        raise ValueError(
            f"{path.name}: the first cell must hold '# a title' and a line '**Needs:** about ...'"
        )
    names = (
        ()
        if needs["assets"] == "none"
        else tuple(name.strip() for name in needs["assets"].split(","))
    )
    return Lesson(
        path, title[1], int(needs["seconds"]), float(needs["gigabytes"]), needs["gpu"], names
    )


def lessons() -> list[Lesson]:
    """All numbered notebooks in order, without their solutions."""
    return [read(path) for path in sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))]
