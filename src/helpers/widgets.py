"""Things to move in the notebooks: `memory_explorer` belongs to notebook 02, `temperature_explorer` to 06.

The explorer has to answer at once, and a prediction takes a second or more. So every choice was predicted ahead at four
points (batch, length), by tests/make_memory_grid.py. In between, the terms of every phase follow 1, batch, batch x
length and batch x length squared, which four points determine; the peak is the highest phase.
"""

import functools
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import ipywidgets
import numpy

from . import plots

GRID = Path(__file__).with_name("memory_grid.json")
POINTS = ((64, 128), (64, 256), (64, 512), (128, 256))
CLOSE = 0.05  # thirty estimates in between came to within this of the prediction
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
