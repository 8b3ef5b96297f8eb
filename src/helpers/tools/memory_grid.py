"""Make the predictions behind the memory explorer of notebook 02.

Python -m helpers.tools.memory_grid

It takes a quarter of an hour and writes src/helpers/memory_grid.json: for every choice in the
explorer and every phase of a step, the terms in bytes at `memory_grid.POINTS`, with the versions
that they were made with. To be run again when predictions change.
"""

import json

from helpers.core import machine
from helpers.lessons import memory, memory_grid


def main() -> None:
    """Predict every choice at every point, for a card."""
    terms = [
        term for term in memory_grid.TERMS if term not in ("workspace", "context")
    ]  # those are the same everywhere
    choices = {}
    training = memory_grid.MODES[1]  # that with SGD follows from it
    for model in memory_grid.MODELS:
        for dtype in memory_grid.DTYPES:
            for mode, lever in [
                ("inference", "none"),
                *((training, lever) for lever in memory_grid.LEVERS),
            ]:
                options = memory_grid.options(model, mode, dtype, lever)
                peaks = [
                    memory.predict_peak(model, *p, device="cuda", **options).phases
                    for p in memory_grid.POINTS
                ]
                choices["|".join((model, mode, dtype, lever))] = {
                    phase: {
                        term: sizes
                        for term in terms
                        if any(sizes := [peak[phase].get(term, 0) for peak in peaks])
                    }
                    for phase in peaks[0]
                }
    grid = {"made with": machine.versions(), "points": memory_grid.POINTS, "choices": choices}
    memory_grid.GRID.write_text(json.dumps(grid, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
