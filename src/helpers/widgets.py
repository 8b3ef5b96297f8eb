"""Things to move in the notebooks: explorers of memory (02), quantization (05) and temperature (06), a chooser (08).

The first one has to answer at once, and a prediction takes a second or more. So every choice was predicted ahead at
four points (batch, length), by tests/make_memory_grid.py. Elsewhere the terms of every phase follow 1, batch, batch x
length and batch x length squared, which four points determine; the peak is the highest phase.
"""

import functools
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import ipywidgets
import numpy
from matplotlib.ticker import LogLocator, NullFormatter

from . import plots

GRID = Path(__file__).with_name("memory_grid.json")
POINTS = ((64, 128), (64, 256), (64, 512), (128, 256))
CLOSE = 0.07  # a hundred estimates (all models, batch 1 to 128, length 8 to 512) came to within this
CARDS = (4, 8, 12, 16, 24, 80)  # GiB of common cards
MODELS = ("minilm", "bert-base", "scibert", "bert-large")
DTYPES = {"float32": {}, "mixed precision": {"mixed_precision": True}, "bfloat16 weights": {"dtype": "bfloat16"}}
TERMS = ("weights", "gradients", "optimizer", "activations", "inputs", "workspace", "allocator", "context")
MODES = ("inference", "training, AdamW", "training, SGD")
LEVERS = {
    "none": {},
    "checkpointing": {"checkpointing": True},
    "half of the layers frozen": {"freeze": "half"},
    "only the head trained": {"freeze": "body"},
    "LoRA, rank 8": {"lora": 8},
    "LoRA and checkpointing": {"lora": 8, "checkpointing": True},
}


def options(model: str, mode: str, dtype: str, lever: str) -> dict:
    """The options of `helpers.memory.predict_peak` for a choice in the explorer."""
    from . import assets

    if mode == "inference":
        return DTYPES[dtype] | {"mode": "inference"}
    chosen = DTYPES[dtype] | LEVERS[lever] | {"optimizer": "sgd" if "SGD" in mode else "adamw"}
    if chosen.get("freeze") == "half":
        chosen["freeze"] = assets.config(model).num_hidden_layers // 2
    return chosen


def estimate(model: str, mode: str, dtype: str, lever: str, batch: int, length: int):
    """The `helpers.memory.Peak` on a card for a choice, from the predictions made ahead; exact at `POINTS`."""
    from . import memory

    lever, ahead = ("none", mode) if mode == "inference" else (lever, MODES[1])
    sizes = [[1, b, b * n, b * n * n] for b, n in POINTS]
    weights = numpy.linalg.solve(numpy.array(sizes, float).T, [1, batch, batch * length, batch * length**2])
    phases = {}
    for phase, predicted in _grid()["|".join((model, ahead, dtype, lever))].items():
        terms = {name: max(round(float(weights @ values)), 0) for name, values in predicted.items()}
        if "SGD" in mode:  # its step is AdamW's without moments
            terms.pop("optimizer", None)
        phases[phase] = terms | {"workspace": memory.CUBLAS_WORKSPACE, "context": memory.CUDA_CONTEXT}
    highest = max(phases, key=lambda phase: sum(phases[phase].values()))
    return memory.Peak(phases[highest], highest, memory.CUDA_ASSUMPTIONS, phases)


@functools.cache
def _grid() -> dict:
    return json.loads(GRID.read_text(encoding="utf-8"))["choices"]


def picture(peak, title: str) -> str:
    """A peak as a stacked bar against the sizes of common cards (HTML), with a caption that gives the verdicts."""
    verdicts = {card: peak.verdict(card) for card in CARDS}
    shown = next((i for i, card in enumerate(CARDS) if verdicts[card] == "fits"), len(CARDS) - 1)
    fig, axes = plots.plt.subplots(figsize=(8, 2.2))
    left = 0.0
    for name, colour in zip(TERMS, (*plots.PALETTE, plots.GREY, "black"), strict=True):
        axes.barh(0, peak.terms.get(name, 0) / 2**30, left=left, color=colour, label=name)
        left += peak.terms.get(name, 0) / 2**30
    for card in CARDS[: max(shown, 1) + 1]:
        axes.axvline(card, color=plots.GREY, linestyle="--")
        axes.annotate(card, (card, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom")
    axes.set(yticks=[], xlabel="GiB (dashed: sizes of cards)", xlim=(0, max(left, CARDS[max(shown, 1)]) * 1.03))
    axes.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.35), fontsize=9)
    cards = ", ".join(f"{card} GiB: {verdict}" for card, verdict in verdicts.items())
    return plots.html(fig, f"{title}: {left:.2f} GiB, reached in the {peak.moment}. {cards}.")


def memory_explorer() -> ipywidgets.VBox:
    """Controls for model, mode, dtype, lever, batch and length; below them the predicted peak against common cards."""
    controls = {
        "model": ipywidgets.Dropdown(options=MODELS, value="bert-base"),
        "mode": ipywidgets.Dropdown(options=MODES, value=MODES[1]),
        "dtype": ipywidgets.Dropdown(options=list(DTYPES)),
        "lever": ipywidgets.Dropdown(options=list(LEVERS)),
        "batch": ipywidgets.SelectionSlider(options=[1, 2, 4, 8, 16, 32, 64, 128], value=32),
        "length": ipywidgets.IntSlider(512, 8, 512, 8),
    }
    for name, control in controls.items():
        control.description = name

    def show() -> str:
        choice = {name: control.value for name, control in controls.items()}
        controls["lever"].disabled = choice["mode"] == "inference"
        exact = (choice["batch"], choice["length"]) in POINTS and "SGD" not in choice["mode"]
        source = (
            "predicted for exactly this choice" if exact else f"interpolated between predictions, to about {CLOSE:.0%}"
        )
        title = f"{choice['model']}, {choice['batch']} texts of {choice['length']} tokens ({source})"
        return picture(estimate(**choice), title)

    return _explorer(controls.values(), show)


def _explorer(controls: Iterable[ipywidgets.Widget], show: Callable[[], str]) -> ipywidgets.VBox:
    """Controls, and below them what `show` gives (HTML), anew whenever one of them is moved."""
    out = ipywidgets.HTML()

    def update(_=None) -> None:
        out.value = show()

    for control in controls:
        control.observe(update, "value")
    update()
    return ipywidgets.VBox([*controls, out])


def affine(
    weights, bits: int, symmetric: bool, per_channel: bool
) -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray]:
    """Quantize a matrix (out, in) and back: the restored matrix, and scale and zero point, (1, 1) or (out, 1).

    A level q stands for (q - zero point) * scale. Symmetric levels go from -(2**(bits - 1) - 1) to the same with plus,
    and their zero point is 0; the others from 0 to 2**bits - 1. Both represent 0 exactly, so the range always holds it
    (Jacob et al., arXiv:1712.05877). Raises ValueError for anything but a matrix of finite numbers and 2 to 8 bits.
    """
    weights = numpy.asarray(weights, dtype=numpy.float64)
    if weights.ndim != 2 or not weights.size or not numpy.isfinite(weights).all():
        raise ValueError(
            f"weights is a matrix of finite numbers with a row for each output, not one of {weights.shape}"
        )
    if bits not in range(2, 9):
        raise ValueError(f"bits is a whole number from 2 to 8, not {bits!r}")
    axis = 1 if per_channel else None
    low, high = (numpy.minimum(weights, 0).min(axis, keepdims=True), numpy.maximum(weights, 0).max(axis, keepdims=True))
    top = 2 ** (bits - 1) - 1 if symmetric else 2**bits - 1
    reach = numpy.maximum(-low, high) if symmetric else high - low
    scale = numpy.where(reach > 0, reach, 1) / top
    zero = numpy.zeros_like(scale) if symmetric else numpy.round(-low / scale)
    levels = numpy.clip(numpy.round(weights / scale) + zero, -top if symmetric else 0, top)
    return (levels - zero) * scale, scale, zero


def quantization_picture(weights, bits: int, symmetric: bool, per_channel: bool) -> str:
    """The weights of a matrix (out, in) as a histogram, with the levels of :func:`affine` and its errors (HTML).

    With a scale a row, the picture shows the row whose range is the middle one.
    """
    restored, scale, zero = affine(weights, bits, symmetric, per_channel)
    error = weights - restored
    row = int(numpy.argsort(numpy.ptp(weights, axis=1))[len(weights) // 2])
    q = numpy.arange(1 - 2 ** (bits - 1), 2 ** (bits - 1)) if symmetric else numpy.arange(2**bits)
    fig, axes = plots.plt.subplots(figsize=(8, 2.8))
    axes.hist(weights[row] if per_channel else weights.ravel(), bins=100, log=True, color=plots.BLUE)
    place = row if per_channel else 0
    lines = {"transform": axes.get_xaxis_transform(), "color": plots.ORANGE, "linewidth": min(1.5, 40 / len(q))}
    axes.vlines((q - zero[place]) * scale[place], 0, 1, **lines)
    axes.set(xlabel="weight (lines: the levels)", ylabel="how many")
    kind = f"{bits} bits, {'symmetric' if symmetric else 'asymmetric'}"
    kind += f", a scale for each of {len(weights)} rows (shown: row {row})" if per_channel else ", one scale"
    share = numpy.sqrt(numpy.mean(error**2) / max(numpy.mean(numpy.square(weights)), 1e-300))
    errors = f"largest error {numpy.abs(error).max():.4f}, root mean square {share:.2%} of the weights' own"
    return plots.html(fig, f"{kind}: {len(q)} levels; {errors}.")


def quantization_explorer(weights) -> ipywidgets.VBox:
    """Controls for bits, symmetry and granularity; below them what rounding does to a matrix (out, in)."""
    controls = [
        ipywidgets.IntSlider(4, 2, 8, description="bits"),
        ipywidgets.Checkbox(True, description="symmetric"),
        ipywidgets.Dropdown(options={"whole matrix": False, "per output channel": True}, description="a scale for"),
    ]
    return _explorer(controls, lambda: quantization_picture(weights, *(control.value for control in controls)))


def softened(logits, temperature: float) -> tuple[numpy.ndarray, float, float]:
    """Softmax of logits / T, its entropy in bits, and the norm of the gradient that a student with equal logits gets.

    That gradient of KL(softened teacher || softened student) with respect to the student's logits is (q - p) / T.
    """
    powers = numpy.exp((numpy.array(logits) - max(logits)) / temperature)
    p = powers / powers.sum()
    entropy = -float((p * numpy.log2(numpy.maximum(p, 1e-300))).sum())
    return p, entropy, float(numpy.linalg.norm((1 / len(p) - p) / temperature))


def temperature_picture(logits, temperature: float) -> str:
    """A teacher's probabilities at T = 1 and at another temperature as bars (HTML), with the numbers in the caption."""
    fig, axes = plots.plt.subplots(figsize=(7, 2.6))
    places = numpy.arange(len(logits))
    for shift, t, colour in ((-0.2, 1.0, plots.GREY), (0.2, temperature, plots.BLUE)):
        bars = axes.bar(places + shift, softened(logits, t)[0], 0.38, color=colour, label=f"T = {t:.3g}")
        axes.bar_label(bars, fmt="%.2f", fontsize=9)
    axes.set(xticks=places, xticklabels=[f"logit {logit:g}" for logit in logits], ylim=(0, 1.15), ylabel="probability")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    p, entropy, gradient = softened(logits, temperature)
    shares, most = ", ".join(f"{share:.3f}" for share in p), numpy.log2(len(p))
    caption = f"T = {temperature:.3g}: probabilities {shares}; entropy {entropy:.2f} of at most {most:.2f} bits."
    sizes = f"{gradient:.3f}, with the factor T² {temperature**2 * gradient:.3f}"
    caption += f" Gradient for an undecided student: {sizes}."
    return plots.html(fig, caption)


def temperature_explorer() -> ipywidgets.VBox:
    """Controls for a teacher's three logits and the temperature; below them what a student would be shown."""
    controls = [
        ipywidgets.FloatSlider(value, min=-8, max=8, step=0.5, description=f"logit {number}")
        for number, value in enumerate((4.0, 1.0, -2.0), 1)
    ]
    controls.append(ipywidgets.FloatLogSlider(2.0, base=2, min=-2, max=6, step=0.25, description="temperature"))

    def show() -> str:
        *logits, temperature = (control.value for control in controls)
        return temperature_picture(logits, temperature)

    return _explorer(controls, show)


def within(table, megabytes: float, milliseconds: float, points: float):
    """The rows of a table of pipelines that keep three limits: size, time a sentence, points below the first row.

    ``table`` has a row a pipeline and the columns MB, ms and accuracy (a fraction).
    """
    lost = 100 * (table["accuracy"].iloc[0] - table["accuracy"])
    return table[(table["MB"] <= megabytes) & (table["ms"] <= milliseconds) & (lost <= points + 1e-9)]


def choice_picture(table, megabytes: float, milliseconds: float, points: float) -> str:
    """All pipelines of a table by time, accuracy and size; of those within limits, the fastest stands out (HTML)."""
    good, first = within(table, megabytes, milliseconds, points), table["accuracy"].iloc[0]
    chosen = None if good.empty else good["ms"].idxmin()
    fig, axes = plots.plt.subplots(figsize=(7.5, 3.8))
    for number, (name, row) in enumerate(table.sort_values("ms").iterrows()):
        colour = plots.ORANGE if name == chosen else plots.BLUE if name in good.index else "#bbbbbb"
        above = (-15, 7, -27, 19)[number % 4]  # else neighbours in time would write over each other
        axes.scatter(row["ms"], 100 * row["accuracy"], s=4 * row["MB"] + 20, color=colour, alpha=0.8)
        axes.annotate(
            name, (row["ms"], 100 * row["accuracy"]), xytext=(4, above), textcoords="offset points", fontsize=9
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
    facts = f"{row['MB']:.0f} MB, {row['ms']:.3g} ms, {100 * (first - row['accuracy']):.1f} points lost"
    return plots.html(fig, f"{limits}{chosen} ({facts}).")


def pipeline_chooser(table) -> ipywidgets.VBox:
    """Controls for memory, time and accuracy; below them the fastest pipeline of a table within all three limits."""
    logarithmic = {"base": 10, "step": 0.05}
    controls = {
        "MB": ipywidgets.FloatLogSlider(200, min=0.5, max=3.5, **logarithmic),
        "ms": ipywidgets.FloatLogSlider(20, min=-2, max=2.5, **logarithmic),
        "points": ipywidgets.FloatSlider(1.0, min=0, max=8, step=0.1),
    }
    for name, control in controls.items():
        control.description = f"{name} to lose" if name == "points" else f"{name} at most"
    return _explorer(controls.values(), lambda: choice_picture(table, *(c.value for c in controls.values())))
