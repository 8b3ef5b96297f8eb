"""The benchmark behind `python -m helpers bench`: every figure that the tutorial speaks of.

A part is a function from `quick` to a `Part`; parts stand in the modules bench_memory,
bench_engines and bench_corpus and are registered in `PARTS`.
"""

from collections.abc import Callable
from pathlib import Path

from helpers.core import machine
from helpers.tools import bench_corpus, bench_engines, bench_memory
from helpers.tools.bench_report import Part, add, load, write

PARTS: dict[str, Callable[[bool], Part]] = {
    "notebooks": bench_corpus.notebooks,
    "memory": bench_memory.memory,
    "checkpoints": bench_memory.checkpoints,
    "embedding": bench_corpus.embedding,
    "engines": bench_engines.engines,
    "quantization": bench_engines.quantization,
    "pipeline": bench_corpus.pipeline,
}


def main(quick: bool, only: list[str] | None, target: Path | None) -> int:
    """Run parts in turn, print their tables, and write them to a file if one is given.

    The file is written after every part, so a part that fails or is interrupted costs only
    itself; parts that are in the file and not in this run stay there. A file that is no report
    raises ValueError.
    """
    report = load(target) if target and target.exists() else {"parts": {}}
    print(machine.describe_machine(), flush=True)
    for name in only or PARTS:
        part = PARTS[name](quick)
        print(f"\n{name}\n{part.table.round(3).to_string()}", flush=True)
        for key, value in part.ratios.items():
            print(f"{key:35} {value:g}", flush=True)
        add(report, name, part, quick)
        if target:
            write(target, report)
    return 0
