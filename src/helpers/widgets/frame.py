"""Controls, and below them what they choose."""

from collections.abc import Callable, Iterable

import ipywidgets


class _Explorer(ipywidgets.VBox):
    def __repr__(self) -> str:  # stands in the stored page, where no widget can
        return f"({self.what}. Run the notebook to use it.)"


def explorer(controls: Iterable, show: Callable[[], str], what: str) -> ipywidgets.VBox:
    """Show controls, and below them `show()` (HTML); a stored page says `what` in their place."""
    out = ipywidgets.HTML()

    def update(_=None) -> None:
        out.value = show()

    for control in controls:
        control.observe(update, "value")
    update()
    box = _Explorer([*controls, out])
    box.what = what
    return box
