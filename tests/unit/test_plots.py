"""A figure reaches the notebook as a picture with a text alternative, and is closed."""

import base64
import re

from helpers.core import plots

import pytest
from bs4 import BeautifulSoup


@pytest.fixture
def figure():
    fig, ax = plots.plt.subplots()
    ax.plot([1, 2, 3])
    return fig


def test_the_caption_stands_below_and_the_alternative_text_in_the_picture(figure):
    caption = 'Memory grows with length: "512" needs > 4 times & more than <128>.'
    alt = 'A line from "1" to <3>.'
    page = BeautifulSoup(plots.html(figure, caption, alt), "html.parser")
    assert page.img["alt"] == alt
    assert page.get_text() == caption


def test_the_picture_is_a_png_of_the_stated_size_and_the_figure_is_closed(figure):
    page = BeautifulSoup(plots.html(figure, "It rises.", "A line."), "html.parser")
    kind, data = page.img["src"].split(",", 1)
    png = base64.b64decode(data, validate=True)
    assert kind == "data:image/png;base64"
    width, height = int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")
    assert png.startswith(b"\x89PNG")
    assert 700 <= width <= 850
    assert 400 <= height <= 500
    assert len(png) < 60_000
    assert not plots.plt.fignum_exists(figure.number)


def test_show_displays_html_and_returns_nothing(figure, monkeypatch):
    import IPython.display

    shown = []
    monkeypatch.setattr(IPython.display, "display", shown.append)
    assert plots.show(figure, "It rises.", "A line.") is None
    assert re.match(r"<figure.*</figure>$", shown[0].data, re.DOTALL)


def test_colours_differ_in_lightness_too():
    # Whoever sees no colours, or prints in grey, must tell neighbours in the palette apart.
    def lightness(colour):
        return (
            sum(w * int(colour[i : i + 2], 16) for w, i in ((0.2126, 1), (0.7152, 3), (0.0722, 5)))
            / 255
        )

    first = [lightness(colour) for colour in plots.PALETTE[:3]]
    assert min(abs(a - b) for i, a in enumerate(first) for b in first[:i]) > 0.08
