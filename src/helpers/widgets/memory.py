"""The memory explorer of notebook 02."""

from helpers.core import plots
from helpers.lessons import memory, memory_grid
from helpers.widgets import frame

import ipywidgets

SIZES = (4, 8, 12, 16, 24, 80)  # GiB of common GPUs
COLOURS = (*plots.PALETTE, plots.GREY, "black")  # of the terms


def picture(peak: memory.Peak, title: str) -> str:
    """Return a peak as a stacked bar against common GPUs (HTML), with the verdicts."""
    verdicts = {size: peak.verdict(size) for size in SIZES}
    fits = [size for size in SIZES if verdicts[size] == "fits"]
    largest = max(8, min(fits, default=80))  # of the GPUs that are drawn
    fig, axes = plots.plt.subplots(figsize=(8, 2.2))
    left = 0.0
    for name, colour in zip(memory_grid.TERMS, COLOURS, strict=True):
        width = peak.terms.get(name, 0) / 2**30
        axes.barh(0, width, left=left, color=colour, label=name)
        left += width
    for size in (size for size in SIZES if size <= largest):
        axes.axvline(size, color=plots.GREY, linestyle="--")
        axes.annotate(size, (size, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom")
    axes.set(yticks=[], xlabel="GiB (dashed: sizes of GPUs)", xlim=(0, max(left, largest) * 1.03))
    axes.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.35), fontsize=9)
    gpus = ", ".join(f"{size} GiB: {verdict}" for size, verdict in verdicts.items())
    return plots.html(fig, f"{title}: {left:.2f} GiB, reached in the {peak.moment}. {gpus}.")


def memory_explorer() -> ipywidgets.VBox:
    """Show the predicted peak for a model, mode, dtype, lever, batch and length."""
    controls = {
        "model": ipywidgets.Dropdown(options=memory_grid.MODELS, value="bert-base"),
        "mode": ipywidgets.Dropdown(options=memory_grid.MODES, value="training, AdamW"),
        "dtype": ipywidgets.Dropdown(options=list(memory_grid.DTYPES)),
        "lever": ipywidgets.Dropdown(options=list(memory_grid.LEVERS)),
        "batch": ipywidgets.SelectionSlider(options=[1, 2, 4, 8, 16, 32, 64, 128], value=32),
        "length": ipywidgets.IntSlider(512, 8, 512, 8),
    }
    for name, control in controls.items():
        control.description = name

    def show() -> str:
        choice = {name: control.value for name, control in controls.items()}
        controls["lever"].disabled = choice["mode"] == "inference"
        size = (choice["batch"], choice["length"])
        source = f"interpolated between predictions, to about {memory_grid.CLOSE:.0%}"
        if size in memory_grid.POINTS and "SGD" not in choice["mode"]:
            source = "predicted for exactly this choice"
        title = f"{choice['model']}, {size[0]} texts of {size[1]} tokens ({source})"
        return picture(memory_grid.estimate(**choice), title)

    return frame.explorer(controls.values(), show)
