"""The pipeline chooser of notebook 08."""

from helpers.core import plots
from helpers.widgets.frame import explorer

import ipywidgets
from matplotlib.ticker import LogLocator, NullFormatter


def within(table, megabytes: float, milliseconds: float, points: float):
    """Return the pipelines within limits of size, time a sentence, and points lost to the first.

    `table` has a row for each pipeline and the columns MB, ms and accuracy (a fraction).
    """
    lost = 100 * (table["accuracy"].iloc[0] - table["accuracy"])
    small, fast = table["MB"] <= megabytes, table["ms"] <= milliseconds
    return table[small & fast & (lost <= points + 1e-9)]


def choice_picture(table, megabytes: float, milliseconds: float, points: float) -> str:
    """Draw all pipelines by time, accuracy and size, the fastest within limits in orange (HTML)."""
    good, first = within(table, megabytes, milliseconds, points), table["accuracy"].iloc[0]
    chosen = None if good.empty else good["ms"].idxmin()
    fig, axes = plots.plt.subplots(figsize=(7.5, 3.8))
    colours = dict.fromkeys(good.index, plots.BLUE) | {chosen: plots.ORANGE}
    colour = [colours.get(name, "#bbbbbb") for name in table.index]
    axes.scatter(table["ms"], 100 * table["accuracy"], 4 * table["MB"] + 20, colour, alpha=0.8)
    ordered = table.sort_values("ms")
    front = ordered[ordered["accuracy"] > ordered["accuracy"].cummax().shift(fill_value=0)]
    axes.plot(front["ms"], 100 * front["accuracy"], color=plots.GREY, linewidth=1, zorder=0)
    for name, row in front.iterrows():  # the others would write over each other, and are beaten
        place = (row["ms"], 100 * row["accuracy"])
        axes.annotate(name, place, (-4, 8), textcoords="offset points", fontsize=9, ha="right")
    axes.axhline(100 * first - points, color=plots.GREY, linestyle="--")
    axes.axvline(milliseconds, color=plots.GREY, linestyle="--")
    axes.set(xscale="log", xlabel="milliseconds a sentence", ylabel="accuracy in %")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(x=0.25, y=0.2)
    limits = f"At most {megabytes:.0f} MB, {milliseconds:.3g} ms a sentence"
    limits += f" and {points:.1f} points to lose: "
    if chosen is None:
        return plots.html(fig, limits + "nothing here is within all three limits. Loosen one.")
    row = table.loc[chosen]
    lost = f"{100 * (first - row['accuracy']):.1f} points lost"
    return plots.html(fig, f"{limits}{chosen} ({row['MB']:.0f} MB, {row['ms']:.3g} ms, {lost}).")


def pipeline_chooser(table) -> ipywidgets.VBox:
    """Return sliders for three limits, and below them the `choice_picture` of a table."""
    steps = {"base": 10, "step": 0.05}
    controls = (
        ipywidgets.FloatLogSlider(200, min=0.5, max=3.5, description="MB at most", **steps),
        ipywidgets.FloatLogSlider(20, min=-2, max=2.5, description="ms at most", **steps),
        ipywidgets.FloatSlider(1.0, min=0, max=8, step=0.1, description="points to lose"),
    )
    return explorer(controls, lambda: choice_picture(table, *(c.value for c in controls)))
