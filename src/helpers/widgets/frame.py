"""Controls, and below them what they choose."""

from collections.abc import Callable, Iterable

import ipywidgets


def _explorer(controls: Iterable[ipywidgets.Widget], show: Callable[[], str]) -> ipywidgets.VBox:
    """Controls, and below them what `show` gives (HTML), anew whenever one of them is moved."""
    out = ipywidgets.HTML()

    def update(_=None) -> None:
        out.value = show()

    for control in controls:
        control.observe(update, "value")
    update()
    return ipywidgets.VBox([*controls, out])
