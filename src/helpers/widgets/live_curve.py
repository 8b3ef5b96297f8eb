"""Curves of a training, redrawn while it runs."""

from collections.abc import Callable

from helpers.core import plots

from huggingface_hub.utils import are_progress_bars_disabled
from IPython.display import HTML, display


class LiveCurve:
    """Curves of trainings, redrawn while they run (not where progress bars are off)."""

    def __init__(self, ylabel: str, every: int = 20):
        self.ylabel, self.every, self.curves = ylabel, every, {}
        self.live = None if are_progress_bars_disabled() else display(display_id=True)

    def follow(self, name: str, measure: Callable[[], float]) -> Callable[[int, float], None]:
        """Return an `after_step` for `train`, which notes what is measured every few steps."""
        steps, values = self.curves.setdefault(name, ([], []))

        def after_step(step: int, loss: float) -> None:
            if step % self.every == 0:
                steps.append(step)
                values.append(measure())
                if self.live:
                    self.show(f"{self.ylabel}: {name} {values[-1]:.3g}", last=False)

        return after_step

    def show(self, alt: str, last: bool = True) -> None:
        """Show all curves with `alt`: for good, or in place of the live picture."""
        fig, axes = plots.plt.subplots()
        for name, (steps, values) in self.curves.items():
            axes.plot(steps, values, marker="o", label=name)
        axes.set(xlabel="training step", ylabel=self.ylabel)
        axes.legend()
        if self.live:
            self.live.update(HTML("" if last else plots.html(fig, alt)))
        if last:
            plots.show(fig, alt)
