"""The temperature explorer of notebook 06."""

from helpers.core import plots
from helpers.widgets.frame import explorer

import ipywidgets
import numpy


def softened(logits, temperature: float) -> tuple[numpy.ndarray, float, float]:
    """Return softmax(logits / T), its entropy in bits, and the size of a gradient.

    It is that of KL(teacher || student), (q - p) / T, for a student with equal logits.
    """
    powers = numpy.exp((numpy.array(logits) - max(logits)) / temperature)
    p = powers / powers.sum()
    entropy = -float((p * numpy.log2(numpy.maximum(p, 1e-300))).sum())
    return p, entropy, float(numpy.linalg.norm((1 / len(p) - p) / temperature))


def temperature_picture(logits, temperature: float) -> str:
    """Return a teacher's probabilities at T = 1 and at another temperature as bars (HTML)."""
    fig, axes = plots.plt.subplots(figsize=(7, 2.6))
    places = numpy.arange(len(logits))
    for shift, t, colour in ((-0.2, 1.0, plots.GREY), (0.2, temperature, plots.BLUE)):
        heights = softened(logits, t)[0]
        bars = axes.bar(places + shift, heights, 0.38, color=colour, label=f"T = {t:.3g}")
        axes.bar_label(bars, fmt="%.2f", fontsize=9)
    axes.set_xticks(places, [f"logit {logit:g}" for logit in logits])
    axes.set(ylim=(0, 1.15), ylabel="probability")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    p, entropy, gradient = softened(logits, temperature)
    shares, most = ", ".join(f"{share:.3f}" for share in p), numpy.log2(len(p))
    caption = (
        f"T = {temperature:.3g}: probabilities {shares}; entropy {entropy:.2f} of at most "
        f"{most:.2f} bits. Gradient for an undecided student: {gradient:.3f}, with the factor T² "
        f"{temperature**2 * gradient:.3f}."
    )
    plain = ", ".join(f"{share:.3f}" for share in softened(logits, 1.0)[0])
    return plots.html(fig, caption, f"Bars at T = 1: {plain}; at T = {temperature:.3g}: {shares}.")


def temperature_explorer() -> ipywidgets.VBox:
    """Return sliders for three logits and the temperature, with the picture below them."""
    controls = []
    for number, value in enumerate((4.0, 1.0, -2.0), 1):
        name = f"logit {number}"
        controls.append(ipywidgets.FloatSlider(value, min=-8, max=8, step=0.5, description=name))
    style = {"base": 2, "min": -2, "max": 6, "step": 0.25, "description": "temperature"}
    controls.append(ipywidgets.FloatLogSlider(2.0, **style))

    def show() -> str:
        *logits, temperature = (control.value for control in controls)
        return temperature_picture(logits, temperature)

    return explorer(controls, show, "Sliders for three logits and the temperature, and the bars")
