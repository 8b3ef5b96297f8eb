"""Make the predictions behind the memory explorer of notebook 02: python tests/make_memory_grid.py

It takes a quarter of an hour and writes src/helpers/memory_grid.json: for every choice in the explorer and every phase
of a step, the terms in bytes at `widgets.POINTS`, with the versions that they were made with. To be run again when
predictions change.
"""

import json

from helpers import machine, memory, widgets


def main() -> None:
    """Predict every choice at every point, for a card."""
    terms = [term for term in widgets.TERMS if term not in ("workspace", "context")]  # those are the same everywhere
    choices = {}
    training = widgets.MODES[1]  # that with SGD follows from it
    for model in widgets.MODELS:
        for dtype in widgets.DTYPES:
            for mode, lever in [("inference", "none"), *((training, lever) for lever in widgets.LEVERS)]:
                options = widgets.options(model, mode, dtype, lever)
                peaks = [memory.predict_peak(model, *p, device="cuda", **options).phases for p in widgets.POINTS]
                choices["|".join((model, mode, dtype, lever))] = {
                    phase: {term: sizes for term in terms if any(sizes := [peak[phase].get(term, 0) for peak in peaks])}
                    for phase in peaks[0]
                }
    grid = {"made with": machine.versions(), "points": widgets.POINTS, "choices": choices}
    widgets.GRID.write_text(json.dumps(grid, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
