"""The sentence explorer of notebook 00: tokens coloured by their share of a decision."""

import html
from collections.abc import Callable, Sequence

from helpers.core import plots
from helpers.widgets.frame import explorer

import ipywidgets

FULL = 0.6  # a share of this size, or a larger one, gets the full colour


def _token(word: str, share: float) -> str:
    """Return one token above its share; blue speaks for positive, vermilion for negative."""
    strength = min(1, abs(share) / FULL)
    colour = f"{plots.BLUE if share > 0 else plots.RED}{round(220 * strength):02x}"
    style = "display: inline-block; text-align: center; padding: 4px 6px; margin: 2px 0"
    style += f"; background: {colour}; color: {'white' if strength > 0.7 else 'black'}"
    word = html.escape(word.removeprefix("##"))
    return f'<span style="{style}">{word}<br><small>{share:+.2f}</small></span>'


def coloured(words: Sequence[str], shares: Sequence[float], caption: str) -> str:
    """Return tokens, each coloured by its share of a logit, above a caption (HTML)."""
    tokens = " ".join(map(_token, words, shares))
    style = "margin: 0; padding: 6px; background: white; color: black; line-height: 1.3"
    said = f'<figcaption style="color: black">{html.escape(caption)}</figcaption>'
    return f'<figure style="{style}">{tokens}{said}</figure>'


def text_explorer(show: Callable[[str], str], text: str) -> ipywidgets.VBox:
    """Return a text field above what `show` makes of its text (HTML), anew at every letter."""
    field = ipywidgets.Text(text, description="your text", layout={"width": "95%"})
    return explorer([field], lambda: show(field.value), "A text field, recoloured while you type")
