"""The memory explorer of notebook 02."""

from helpers.core import plots
from helpers.lessons import memory
from helpers.widgets import frame

import ipywidgets

SIZES = (4, 8, 12, 16, 24, 80)  # GiB of common GPUs
COLOURS = (*plots.PALETTE, plots.GREY, "black")  # of the terms
MODELS = ("minilm", "bert-base", "scibert", "bert-large")
# What can be chosen, and the options of `memory.predict_peak` that it stands for.
MODES = {
    "training, AdamW": {},
    "training, SGD": {"optimizer": "sgd"},
    "inference": {"mode": "inference"},
}
DTYPES = {
    "float32": {},
    "mixed precision": {"mixed_precision": True},
    "bfloat16 weights": {"dtype": "bfloat16"},
}
LEVERS = {
    "none": {},
    "checkpointing": {"checkpointing": True},
    "6 layers frozen": {"freeze": 6},
    "only the head trained": {"freeze": "body"},
    "LoRA, all linear layers": {"lora": 8},
    "LoRA and checkpointing": {"lora": 8, "checkpointing": True},
}


def picture(peak: memory.Peak, title: str) -> str:
    """Return a peak as a stacked bar against common GPUs (HTML), with the verdicts."""
    fig, axes = plots.plt.subplots(figsize=(8, 2.2))
    left = 0.0
    for name, colour in zip(memory.TERMS, COLOURS, strict=True):
        width = peak.terms.get(name, 0) / 2**30
        axes.barh(0, width, left=left, color=colour, label=name)
        left += width
    next_gpu = next((size for size in SIZES[1:] if size >= left), left)
    axes.set(yticks=[], xticks=SIZES, xlabel="GiB (marked: common GPUs)", xlim=(0, next_gpu * 1.03))
    axes.grid(axis="x", linestyle="--")
    verdicts = {"fits": plots.GREEN, "tight": plots.ORANGE, "does not fit": plots.RED}
    for label, size in zip(axes.get_xticklabels(), SIZES, strict=False):
        label.set(color=verdicts[peak.verdict(size)], fontweight="bold")
    axes.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.35), fontsize=9)
    gpus = ", ".join(f"{size} GiB: {peak.verdict(size)}" for size in SIZES)
    parts = ", ".join(f"{name} {size / 2**30:.2f}" for name, size in peak.terms.items())
    said = f"{title}: {left:.2f} GiB, reached in the {peak.moment}. {gpus}."
    return plots.html(fig, said, f"A bar of stacked parts in GiB: {parts}.")


def memory_explorer() -> ipywidgets.VBox:
    """Show the predicted peak for a model, mode, dtype, lever, batch and length."""
    late = {"continuous_update": False}  # a prediction takes up to a second or two
    controls = {
        "model": ipywidgets.Dropdown(options=MODELS, value="bert-base"),
        "mode": ipywidgets.Dropdown(options=list(MODES)),
        "dtype": ipywidgets.Dropdown(options=list(DTYPES)),
        "lever": ipywidgets.Dropdown(options=list(LEVERS)),
        "batch": ipywidgets.SelectionSlider(options=[1, 2, 4, 8, 16, 32, 64], value=32, **late),
        "length": ipywidgets.IntSlider(512, 8, 512, 8, **late),
    }
    for name, control in controls.items():
        control.description = name

    def show() -> str:
        model, mode, dtype, lever, batch, length = (one.value for one in controls.values())
        controls["lever"].disabled = mode == "inference"
        options = MODES[mode] | DTYPES[dtype] | ({} if mode == "inference" else LEVERS[lever])
        peak = memory.predict_peak(model, batch, length, device="cuda", **options)
        written = "".join(f", {name}={value!r}" for name, value in options.items())
        code = f'predict_peak("{model}", {batch}, {length}, device="cuda"{written})'
        return picture(peak, code)

    return frame.explorer(controls.values(), show, "Six controls, and the bar for your choice")
