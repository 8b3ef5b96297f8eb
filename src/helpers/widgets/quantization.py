"""The quantization explorer of notebook 05."""

from helpers.core import plots
from helpers.lessons.affine import affine
from helpers.widgets.frame import _explorer

import ipywidgets
import numpy


def quantization_picture(weights, bits: int, symmetric: bool, per_channel: bool) -> str:
    """The weights of a matrix (out, in) as a histogram, with the levels of :func:`affine` and its errors (HTML).

    With a scale a row, the picture shows the row whose range is the middle one.
    """
    restored, scale, zero = affine(weights, bits, symmetric, per_channel)
    error = weights - restored
    row = int(numpy.argsort(numpy.ptp(weights, axis=1))[len(weights) // 2])
    q = numpy.arange(1 - 2 ** (bits - 1), 2 ** (bits - 1)) if symmetric else numpy.arange(2**bits)
    fig, axes = plots.plt.subplots(figsize=(8, 2.8))
    axes.hist(
        weights[row] if per_channel else weights.ravel(), bins=100, log=True, color=plots.BLUE
    )
    place = row if per_channel else 0
    lines = {
        "transform": axes.get_xaxis_transform(),
        "color": plots.ORANGE,
        "linewidth": min(1.5, 40 / len(q)),
    }
    axes.vlines((q - zero[place]) * scale[place], 0, 1, **lines)
    axes.set(xlabel="weight (lines: the levels)", ylabel="how many")
    kind = f"{bits} bits, {'symmetric' if symmetric else 'asymmetric'}"
    kind += (
        f", a scale for each of {len(weights)} rows (shown: row {row})"
        if per_channel
        else ", one scale"
    )
    share = numpy.sqrt(numpy.mean(error**2) / max(numpy.mean(numpy.square(weights)), 1e-300))
    errors = f"largest error {numpy.abs(error).max():.4f}, root mean square {share:.2%} of the weights' own"
    return plots.html(fig, f"{kind}: {len(q)} levels; {errors}.")


def quantization_explorer(weights) -> ipywidgets.VBox:
    """Controls for bits, symmetry and granularity; below them what rounding does to a matrix (out, in)."""
    controls = [
        ipywidgets.IntSlider(4, 2, 8, description="bits"),
        ipywidgets.Checkbox(True, description="symmetric"),
        ipywidgets.Dropdown(
            options={"whole matrix": False, "per output channel": True}, description="a scale for"
        ),
    ]
    return _explorer(
        controls, lambda: quantization_picture(weights, *(control.value for control in controls))
    )
