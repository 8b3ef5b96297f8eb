"""Controls, and below them what they choose."""

from collections.abc import Callable, Iterable

import ipywidgets


def explorer(controls: Iterable[ipywidgets.Widget], show: Callable[[], str]) -> ipywidgets.VBox:
    """Show controls, and below them what `show` returns (HTML) for what they are set to."""
    out = ipywidgets.HTML()

    def update(_=None) -> None:
        out.value = show()

    for control in controls:
        control.observe(update, "value")
    update()
    return ipywidgets.VBox([*controls, out])
