"""The memory explorer of notebook 02."""

from helpers.core import plots
from helpers.lessons.memory_grid import (
    CLOSE,
    DTYPES,
    LEVERS,
    MODELS,
    MODES,
    POINTS,
    TERMS,
    estimate,
)
from helpers.widgets.frame import _explorer

import ipywidgets

CARDS = (4, 8, 12, 16, 24, 80)  # GiB of common cards


def picture(peak, title: str) -> str:
    """Return a peak as a stacked bar against common GPUs (HTML), with the verdicts."""
    verdicts = {card: peak.verdict(card) for card in CARDS}
    shown = next((i for i, card in enumerate(CARDS) if verdicts[card] == "fits"), len(CARDS) - 1)
    fig, axes = plots.plt.subplots(figsize=(8, 2.2))
    left = 0.0
    for name, colour in zip(TERMS, (*plots.PALETTE, plots.GREY, "black"), strict=True):
        axes.barh(0, peak.terms.get(name, 0) / 2**30, left=left, color=colour, label=name)
        left += peak.terms.get(name, 0) / 2**30
    for card in CARDS[: max(shown, 1) + 1]:
        axes.axvline(card, color=plots.GREY, linestyle="--")
        axes.annotate(card, (card, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom")
    axes.set(
        yticks=[],
        xlabel="GiB (dashed: sizes of cards)",
        xlim=(0, max(left, CARDS[max(shown, 1)]) * 1.03),
    )
    axes.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.35), fontsize=9)
    cards = ", ".join(f"{card} GiB: {verdict}" for card, verdict in verdicts.items())
    return plots.html(fig, f"{title}: {left:.2f} GiB, reached in the {peak.moment}. {cards}.")


def memory_explorer() -> ipywidgets.VBox:
    """Controls for model, mode, dtype, lever, batch and length.

    Below them the predicted peak against common cards.
    """
    controls = {
        "model": ipywidgets.Dropdown(options=MODELS, value="bert-base"),
        "mode": ipywidgets.Dropdown(options=MODES, value=MODES[1]),
        "dtype": ipywidgets.Dropdown(options=list(DTYPES)),
        "lever": ipywidgets.Dropdown(options=list(LEVERS)),
        "batch": ipywidgets.SelectionSlider(options=[1, 2, 4, 8, 16, 32, 64, 128], value=32),
        "length": ipywidgets.IntSlider(512, 8, 512, 8),
    }
    for name, control in controls.items():
        control.description = name

    def show() -> str:
        choice = {name: control.value for name, control in controls.items()}
        controls["lever"].disabled = choice["mode"] == "inference"
        exact = (choice["batch"], choice["length"]) in POINTS and "SGD" not in choice["mode"]
        source = (
            "predicted for exactly this choice"
            if exact
            else f"interpolated between predictions, to about {CLOSE:.0%}"
        )
        title = (
            f"{choice['model']}, {choice['batch']} texts of {choice['length']} tokens ({source})"
        )
        return picture(estimate(**choice), title)

    return _explorer(controls.values(), show)
