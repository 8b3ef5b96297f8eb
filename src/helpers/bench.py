"""The benchmark behind `python -m helpers bench`: each lesson adds a part, one run gives every ratio.

A part measures its arms in processes of their own and returns a table to read and ratios to keep. Absolute times of a
shared machine mean little; what the tutorial states are ratios and peaks taken in one run.
"""

import datetime
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pandas

from . import lessons, machine


@dataclass(frozen=True)
class Part:
    """What one part measured: a table to show, and named numbers for the flat object `ratios`."""

    table: pandas.DataFrame
    ratios: dict[str, float] = field(default_factory=dict)


def notebooks(quick: bool) -> Part:
    """Run every lesson from a fresh kernel: seconds, and the peak memory of the kernel and its children (GiB)."""
    found = lessons.lessons()
    chosen = [min(found, key=lambda lesson: lesson.seconds)] if quick else found
    rows = []
    for lesson in chosen:
        run = lessons.measure([sys.executable, "-m", "jupyter", "execute", str(lesson.path)], cwd=lesson.path.parent)
        if run.status:
            raise RuntimeError(f"{lesson.path.name} failed:\n{run.output[-2000:]}")
        rows.append((lesson.path.stem, run.seconds, lesson.seconds, run.peak / 2**30, lesson.gigabytes * 1e9 / 2**30))
    columns = ["notebook", "seconds", "stated seconds", "peak GiB", "stated GiB"]
    table = pandas.DataFrame(rows, columns=columns).set_index("notebook")
    worst = {"notebook_seconds_worst": table["seconds"].max(), "notebook_peak_gib_worst": table["peak GiB"].max()}
    return Part(table, {name: round(float(value), 3) for name, value in worst.items()})


PARTS: dict[str, Callable[[bool], Part]] = {"notebooks": notebooks}


def main(quick: bool, only: list[str] | None, target: Path | None) -> int:
    """Run the chosen parts in turn, print their tables, and write everything to target (JSON) if one is given.

    The file is written anew after every part, so a part that fails or is interrupted costs only itself.
    """
    report = {
        "machine": machine.machine_line(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": "python -m helpers " + " ".join(sys.argv[1:]),
        "quick": quick,
        "parts": {},
        "ratios": {},
    }
    print(report["machine"], flush=True)
    for name in only or PARTS:
        part = PARTS[name](quick)
        print(f"\n{name}\n{part.table.round(3).to_string()}", flush=True)
        report["parts"][name] = json.loads(part.table.reset_index().to_json(orient="records"))
        report["ratios"] |= part.ratios
        if target:
            write(target, report)
    print("\nratios\n" + "\n".join(f"{name:35} {value:g}" for name, value in report["ratios"].items()))
    return 0


def write(target: Path, report: dict) -> None:
    """Write a report as JSON, whole or not at all."""
    with tempfile.NamedTemporaryFile("w", dir=target.parent, suffix=".json", delete=False, encoding="utf-8") as file:
        json.dump(report, file, indent=1)
        file.write("\n")
    Path(file.name).replace(target)
