"""The temperature explorer of notebook 06."""

from helpers.core import plots
from helpers.widgets.frame import _explorer

import ipywidgets
import numpy


def softened(logits, temperature: float) -> tuple[numpy.ndarray, float, float]:
    """Return softmax(logits / T), its entropy in bits, and an undecided student's gradient norm.

    That gradient of KL(softened teacher || softened student) with respect to the student's logits
    is (q - p) / T.
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
        bars = axes.bar(
            places + shift, softened(logits, t)[0], 0.38, color=colour, label=f"T = {t:.3g}"
        )
        axes.bar_label(bars, fmt="%.2f", fontsize=9)
    axes.set(
        xticks=places,
        xticklabels=[f"logit {logit:g}" for logit in logits],
        ylim=(0, 1.15),
        ylabel="probability",
    )
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    p, entropy, gradient = softened(logits, temperature)
    shares, most = ", ".join(f"{share:.3f}" for share in p), numpy.log2(len(p))
    caption = f"T = {temperature:.3g}: probabilities {shares}; "
    caption += f"entropy {entropy:.2f} of at most {most:.2f} bits."
    sizes = f"{gradient:.3f}, with the factor T² {temperature**2 * gradient:.3f}"
    caption += f" Gradient for an undecided student: {sizes}."
    return plots.html(fig, caption)


def temperature_explorer() -> ipywidgets.VBox:
    """Controls for a teacher's three logits and the temperature.

    Below them what a student would be shown.
    """
    controls = [
        ipywidgets.FloatSlider(value, min=-8, max=8, step=0.5, description=f"logit {number}")
        for number, value in enumerate((4.0, 1.0, -2.0), 1)
    ]
    controls.append(
        ipywidgets.FloatLogSlider(2.0, base=2, min=-2, max=6, step=0.25, description="temperature")
    )

    def show() -> str:
        *logits, temperature = (control.value for control in controls)
        return temperature_picture(logits, temperature)

    return _explorer(controls, show)
