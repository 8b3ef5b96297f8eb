"""What a benchmark's part gives, and the file that keeps all parts."""

import datetime
import json
from dataclasses import dataclass, field
from pathlib import Path

from helpers.core import files, machine

import pandas

RECORDED = files.DATA / "bench.json"  # whole runs on the development machine


@dataclass(frozen=True)
class Part:
    """What one part measured: a table, and the numbers by name that the tutorial speaks of."""

    table: pandas.DataFrame
    ratios: dict[str, float] = field(default_factory=dict)


def rounded(ratios: dict[str, float], digits: int = 4) -> dict[str, float]:
    """Return the numbers as plain floats for JSON."""
    return {name: round(float(value), digits) for name, value in ratios.items()}


def load(target: Path = RECORDED) -> dict:
    """Read a report, by default that of this package; ValueError if the file is none."""
    report = json.loads(target.read_text(encoding="utf-8"))
    if not isinstance(report, dict) or "parts" not in report:
        raise ValueError(f"{target} is not a report of this benchmark: choose another name")
    return report


def add(report: dict, name: str, part: Part, quick: bool) -> None:
    """Put one part into a report, in place of an older run of it."""
    report["parts"][name] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine.describe_machine(),
        "quick": quick,
        "rows": json.loads(part.table.reset_index().to_json(orient="records")),
        "ratios": part.ratios,
    }


def write(target: Path, report: dict) -> None:
    """Write a report as JSON in one step: the old file stays until the new one is complete."""
    with files.atomic_write(target) as part:
        part.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
