"""The quantization explorer of notebook 05."""

from helpers.core import plots
from helpers.lessons.affine import affine
from helpers.widgets.frame import explorer

import ipywidgets
import numpy


def quantization_picture(
    weights: numpy.ndarray, bits: int, symmetric: bool, per_channel: bool
) -> str:
    """Return a histogram of a matrix (out, in), with the levels of `affine` and its errors (HTML).

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
    fig, axes = plots.plt.subplots(figsize=(8, 2.8))
    axes.hist(shown, bins=100, log=True, color=plots.BLUE)
    lines = {"transform": axes.get_xaxis_transform(), "linewidth": min(1.5, 40 / len(q))}
    axes.vlines((q - zero[row]) * scale[row], 0, 1, color=plots.ORANGE, **lines)
    axes.set(xlabel="weight (lines: the levels)", ylabel="how many")
    square = numpy.mean((weights - restored) ** 2)
    share = numpy.sqrt(square / max(numpy.mean(numpy.square(weights)), 1e-300))
    largest = numpy.abs(weights - restored).max()
    said = f"{bits} bits, {'symmetric' if symmetric else 'asymmetric'}, {kind}: {len(q)} levels; "
    said += f"largest error {largest:.4f}, root mean square {share:.2%} of the weights' own."
    return plots.html(fig, said)


def quantization_explorer(weights: numpy.ndarray) -> ipywidgets.VBox:
    """Return controls for bits, symmetry and granularity above the picture that they choose."""
    scales = {"whole matrix": False, "per output channel": True}
    controls = [
        ipywidgets.IntSlider(4, 2, 8, description="bits"),
        ipywidgets.Checkbox(True, description="symmetric"),
        ipywidgets.Dropdown(options=scales, description="a scale for"),
    ]
    return explorer(controls, lambda: quantization_picture(weights, *(c.value for c in controls)))
