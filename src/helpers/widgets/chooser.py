"""The pipelines of notebook 08 by time and accuracy, and a cascade whose threshold moves."""

from helpers.core import plots
from helpers.widgets.frame import explorer

import ipywidgets
from matplotlib.ticker import LogLocator, NullFormatter


def front(table):
    """Return the rows that no other one beats: whatever is faster is less accurate."""
    ordered = table.sort_values(["ms", "accuracy"], ascending=[True, False])
    return ordered[ordered["accuracy"] > ordered["accuracy"].cummax().shift(fill_value=0)]


def cascade_picture(table, curve, threshold: float) -> str:
    """Draw pipelines, their front, and a cascade's line with the threshold chosen (HTML).

    Both tables have the columns ms (for a text) and accuracy (a fraction); `table` has a name for
    each row, `curve` also threshold and share, that of texts which the baseline answers.
    """
    fig, axes = plots.plt.subplots(figsize=(9, 4.5))
    best, chosen = front(table), curve.loc[(curve["threshold"] - threshold).abs().idxmin()]
    grey = {"color": plots.GREY, "linewidth": 1, "where": "post", "zorder": 0}
    axes.step(best["ms"], 100 * best["accuracy"], label="front", **grey)
    axes.plot(curve["ms"], 100 * curve["accuracy"], "k", linewidth=2, label="cascade, computed")
    place = (chosen["ms"], 100 * chosen["accuracy"])
    axes.plot(*place, "kD", markersize=11, fillstyle="none", label="this threshold")
    # The legend has the names: beside the dots they would write over each other.
    for number, (name, row) in enumerate(table.sort_values("ms").iterrows()):
        style = {"color": plots.PALETTE[number % 6], "markersize": 10}
        style["fillstyle"] = "full" if name in best.index else "none"
        axes.plot(row["ms"], 100 * row["accuracy"], "osv^Pd"[number % 6], label=name, **style)
    axes.set(xscale="log", xlabel="milliseconds a text (log scale)", ylabel="accuracy in %")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    fig.legend(loc="outside right center")
    words = f"Threshold {chosen['threshold']:.2f}: the baseline answers {chosen['share']:.0%}, "
    words += f"{100 * chosen['accuracy']:.1f} % are right, {chosen['ms']:.3f} ms a text, a million "
    words += f"in {1e6 * chosen['ms'] / 6e4:.1f} minutes. "
    words += f"cascade(texts, baseline, threshold={chosen['threshold']:.2f}, answer_rest=student)"
    shares = ", ".join(f"{name} {share:.1%}" for name, share in table["accuracy"].items())
    return plots.html(fig, words, f"Accuracy over milliseconds a text, a dot for each: {shares}.")


def cascade_explorer(table, curve, threshold: float) -> ipywidgets.VBox:
    """Return a slider for the threshold, and below it the `cascade_picture`."""
    options = {"min": 0.5, "max": 1.0, "step": 0.01, "description": "threshold"}
    slider = ipywidgets.FloatSlider(threshold, continuous_update=False, **options)
    what = "A slider for the threshold, and the figure for it"
    return explorer([slider], lambda: cascade_picture(table, curve, slider.value), what)
