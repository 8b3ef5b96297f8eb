"""Figures of one look, shown with a text alternative."""

import base64
import html as _html
import io

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

# Okabe and Ito's palette, which people with any kind of colour blindness can tell apart
# (jfly.uni-koeln.de/color).
BLUE, ORANGE, GREEN = "#0072B2", "#E69F00", "#009E73"
PINK, SKY, RED, GREY = "#CC79A7", "#56B4E9", "#D55E00", "#666666"
PALETTE = (BLUE, ORANGE, GREEN, PINK, SKY, RED)

matplotlib.rc("figure", figsize=(7, 4), dpi=110, facecolor="white")
matplotlib.rc("figure.constrained_layout", use=True)
matplotlib.rc("font", size=11)
matplotlib.rc("axes", prop_cycle=matplotlib.cycler(color=PALETTE), grid=True, axisbelow=True)
matplotlib.rc("axes.spines", top=False, right=False)
matplotlib.rc("grid", color="#dddddd")
matplotlib.rc("legend", frameon=False)


def html(fig: Figure, caption: str, alt: str) -> str:
    """Return a figure as HTML, closed; the caption interprets, the alternative text describes."""
    png = io.BytesIO()
    # A margin on white, so that axis labels can also be read on JupyterLab's dark theme.
    fig.savefig(png, format="png", dpi=110, facecolor="white", bbox_inches="tight", pad_inches=0.15)
    plt.close(fig)
    source = "data:image/png;base64," + base64.b64encode(png.getvalue()).decode("ascii")
    caption, alt = (_html.escape(text.strip(), quote=True) for text in (caption, alt))
    return (
        f'<figure style="margin: 0"><img src="{source}" alt="{alt}" style="max-width: 100%">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def show(fig: Figure, caption: str, alt: str) -> None:
    """Display a figure as `html` does: JupyterLab gives pictures no text alternative."""
    from IPython.display import HTML, display

    display(HTML(html(fig, caption, alt)))
