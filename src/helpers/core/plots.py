"""Figures of one look, shown with a text alternative; every notebook that plots uses it."""

import base64
import html as _html
import io
from collections.abc import Mapping

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

# Okabe and Ito's palette, which people with any kind of colour blindness can tell apart
# (jfly.uni-koeln.de/color).
BLUE, ORANGE, GREEN, PINK, SKY, RED = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
)
GREY = "#666666"
PALETTE = (BLUE, ORANGE, GREEN, PINK, SKY, RED)

matplotlib.rcParams.update(
    {
        "figure.figsize": (7, 4),
        "figure.dpi": 110,
        "figure.facecolor": "white",
        "figure.constrained_layout.use": True,
        "font.size": 11,
        "axes.prop_cycle": matplotlib.cycler(color=PALETTE),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#dddddd",
        "legend.frameon": False,
    }
)


def html(fig: Figure, alt: str) -> str:
    """Return a figure as HTML, with a text as its alternative and its visible caption.

    Closes the figure. Raises ValueError if `alt` is empty: it is the sentence that says what the
    picture shows.
    """
    if not alt or not alt.strip():
        raise ValueError("alt is empty: give one sentence that says what the figure shows")
    png = io.BytesIO()
    # A margin on white, so that axis labels can also be read on JupyterLab's dark theme.
    fig.savefig(png, format="png", dpi=110, facecolor="white", bbox_inches="tight", pad_inches=0.15)
    plt.close(fig)
    source = "data:image/png;base64," + base64.b64encode(png.getvalue()).decode("ascii")
    text = _html.escape(alt.strip(), quote=True)
    return (
        f'<figure style="margin: 0"><img src="{source}" alt="{text}" style="max-width: 100%">'
        f"<figcaption>{text}</figcaption></figure>"
    )


def show(fig: Figure, alt: str) -> None:
    """Displays `fig` in the notebook with `alt`, one sentence that says what it shows; see `html`.

    As HTML and not as a picture: JupyterLab gives pictures no text alternative.
    """
    from IPython.display import HTML, display

    display(HTML(html(fig, alt)))


def waterfall(rates: Mapping[str, float], unit: str, alt: str) -> None:
    """Shows what each step adds to a rate.

    A bar from the rate before it to its own, on a scale of factors.
    """
    names, values = list(rates), list(rates.values())
    fig, ax = plt.subplots(figsize=(7.5, 1 + 0.45 * len(names)))
    for place, (before, value) in enumerate(zip([values[0], *values], values, strict=False)):
        low, high = sorted((before, value))
        ax.barh(
            place,
            max(high - low, 0.02 * low),
            left=low,
            color=BLUE if value >= before else RED,
            height=0.6,
        )
        rate = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        factor = f"  (×{value / before:,.1f})" if place else ""
        ax.annotate(
            rate + factor,
            (high, place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    ax.set(
        xscale="log",
        xlabel=f"{unit} (each gridline is a factor of ten)",
        xlim=(min(values) / 1.5, 6 * max(values)),
    )
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    show(fig, alt)
