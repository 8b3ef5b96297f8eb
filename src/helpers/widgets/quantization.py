"""The quantization explorer of notebook 05."""

from helpers.core import plots
from helpers.lessons.affine import affine
from helpers.widgets.frame import explorer

import ipywidgets
import numpy


def quantization_picture(
    weights: numpy.ndarray, bits: int, symmetric: bool, per_channel: bool
) -> str:
    """Return the histogram of a matrix (out, in) without its outliers, with levels, as HTML.

    With one scale for each row, it shows the row whose range is the median.
    """
    restored, scale, zero = affine(weights, bits, symmetric, per_channel)
    shown = weights.ravel()
    row = 0
    kind = "one scale"
    if per_channel:
        row = int(numpy.argsort(numpy.ptp(weights, axis=1))[len(weights) // 2])
        shown = weights[row]
        kind = f"a scale for each of {len(weights)} rows (shown: row {row})"
    q = numpy.arange(1 - 2 ** (bits - 1), 2 ** (bits - 1)) if symmetric else numpy.arange(2**bits)
    reach = max(float(numpy.quantile(numpy.abs(weights), 0.9995)), 1e-9)
    fig, axes = plots.plt.subplots(figsize=(8, 2.4))
    axes.hist(shown, bins=60, range=(-reach, reach), color=plots.SKY)
    levels = (q - zero[row]) * scale[row]
    levels = levels[numpy.abs(levels) <= reach]
    lines = {"transform": axes.get_xaxis_transform(), "linewidth": min(1.8, 60 / len(levels))}
    axes.vlines(levels, 0, 1, color=plots.RED, **lines)
    zeros = numpy.mean(restored == 0)
    axes.set_title(f"{kind}: {zeros:.0%} of the weights become 0", loc="left", fontsize=11)
    axes.set(xlim=(-reach, reach), xlabel="weight (red lines: the levels)", ylabel="how many")
    square = numpy.mean((weights - restored) ** 2)
    share = numpy.sqrt(square / max(numpy.mean(numpy.square(weights)), 1e-300))
    said = f"{bits} bits, {'symmetric' if symmetric else 'asymmetric'}, {kind}: {len(q)} levels; "
    said += f"{zeros:.0%} become 0; largest error {numpy.abs(weights - restored).max():.4f}, "
    said += f"root mean square {share:.2%} of the weights' own."
    return plots.html(fig, said, f"Histogram of weights, crossed by {len(levels)} red lines.")


def quantization_explorer(weights: numpy.ndarray) -> ipywidgets.VBox:
    """Return controls for bits, symmetry and granularity above the picture that they choose."""
    scales = {"whole matrix": False, "per output channel": True}
    controls = [
        ipywidgets.IntSlider(6, 2, 8, description="bits"),
        ipywidgets.Checkbox(True, description="symmetric"),
        ipywidgets.Dropdown(options=scales, description="a scale for"),
    ]
    show = lambda: quantization_picture(weights, *(c.value for c in controls))  # noqa: E731
    return explorer(controls, show, "Controls for bits, symmetry and scales, and the picture")
