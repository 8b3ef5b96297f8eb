"""Make the predictions behind the memory explorer of notebook 02.

`python -m helpers.tools.memory_grid` takes a quarter of an hour and writes memory_grid.json: for
every choice in the explorer and every phase of a step, the terms in bytes at `POINTS`, with the
versions that they were made with. To be run again when predictions change.
"""

import json

from helpers.core import machine
from helpers.lessons import memory, memory_grid


def main() -> None:
    """Predict every choice at every point, for a GPU; SGD follows from AdamW."""
    training = memory_grid.MODES[1]
    levers = [("inference", "none"), *((training, lever) for lever in memory_grid.LEVERS)]
    choices = {}
    for model in memory_grid.MODELS:
        for dtype in memory_grid.DTYPES:
            for mode, lever in levers:
                options = memory_grid.options(model, mode, dtype, lever)
                choices["|".join((model, mode, dtype, lever))] = phases_at_points(model, options)
    grid = {"made with": machine.versions(), "points": memory_grid.POINTS, "choices": choices}
    memory_grid.GRID.write_text(json.dumps(grid, separators=(",", ":")) + "\n", encoding="utf-8")


def phases_at_points(model: str, options: dict) -> dict[str, dict[str, list[int]]]:
    """Return the bytes at every point, by phase and term; terms that are always 0 are left out."""
    peaks = []
    for batch, length in memory_grid.POINTS:
        peaks.append(memory.predict_peak(model, batch, length, device="cuda", **options).phases)
    phases = {}
    for phase in peaks[0]:
        phases[phase] = {}
        for term in memory_grid.TERMS:
            sizes = [peak[phase].get(term, 0) for peak in peaks]
            # The workspace and the context are the same everywhere.
            if any(sizes) and term not in ("workspace", "context"):
                phases[phase][term] = sizes
    return phases


if __name__ == "__main__":
    main()
