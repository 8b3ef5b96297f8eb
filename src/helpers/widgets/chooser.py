"""The pipeline chooser of notebook 08."""

from helpers.core import plots
from helpers.widgets.frame import _explorer

import ipywidgets
from matplotlib.ticker import LogLocator, NullFormatter


def within(table, megabytes: float, milliseconds: float, points: float):
    """The rows of a table of pipelines that keep three limits.

    Size, time a sentence, points below the first row.

    `table` has a row a pipeline and the columns MB, ms and accuracy (a fraction).
    """
    lost = 100 * (table["accuracy"].iloc[0] - table["accuracy"])
    return table[
        (table["MB"] <= megabytes) & (table["ms"] <= milliseconds) & (lost <= points + 1e-9)
    ]


def choice_picture(table, megabytes: float, milliseconds: float, points: float) -> str:
    """All pipelines of a table by time, accuracy and size.

    Of those within limits, the fastest stands out (HTML).
    """
    good, first = within(table, megabytes, milliseconds, points), table["accuracy"].iloc[0]
    chosen = None if good.empty else good["ms"].idxmin()
    fig, axes = plots.plt.subplots(figsize=(7.5, 3.8))
    for number, (name, row) in enumerate(table.sort_values("ms").iterrows()):
        colour = plots.ORANGE if name == chosen else plots.BLUE if name in good.index else "#bbbbbb"
        above = (-15, 7, -27, 19)[number % 4]  # else neighbours in time would write over each other
        axes.scatter(
            row["ms"], 100 * row["accuracy"], s=4 * row["MB"] + 20, color=colour, alpha=0.8
        )
        axes.annotate(
            name,
            (row["ms"], 100 * row["accuracy"]),
            xytext=(4, above),
            textcoords="offset points",
            fontsize=9,
        )
    axes.axhline(100 * first - points, color=plots.GREY, linestyle="--")
    axes.axvline(milliseconds, color=plots.GREY, linestyle="--")
    axes.set(xscale="log", xlabel="milliseconds a sentence", ylabel="accuracy in %")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(x=0.25, y=0.2)
    limits = f"At most {megabytes:.0f} MB, {milliseconds:.3g} ms a sentence and {points:.1f} points to lose: "
    if chosen is None:
        return plots.html(fig, limits + "nothing here is within all three limits. Loosen one.")
    row = table.loc[chosen]
    facts = (
        f"{row['MB']:.0f} MB, {row['ms']:.3g} ms, {100 * (first - row['accuracy']):.1f} points lost"
    )
    return plots.html(fig, f"{limits}{chosen} ({facts}).")


def pipeline_chooser(table) -> ipywidgets.VBox:
    """Controls for memory, time and accuracy.

    Below them the fastest pipeline of a table within all three limits.
    """
    logarithmic = {"base": 10, "step": 0.05}
    controls = {
        "MB": ipywidgets.FloatLogSlider(200, min=0.5, max=3.5, **logarithmic),
        "ms": ipywidgets.FloatLogSlider(20, min=-2, max=2.5, **logarithmic),
        "points": ipywidgets.FloatSlider(1.0, min=0, max=8, step=0.1),
    }
    for name, control in controls.items():
        control.description = f"{name} to lose" if name == "points" else f"{name} at most"
    return _explorer(
        controls.values(), lambda: choice_picture(table, *(c.value for c in controls.values()))
    )
