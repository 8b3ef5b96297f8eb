"""What a BERT computes, and what a GPU promises (notebook 07)."""

from helpers.core import files, plots

import pandas as pd


def peaks(gpu: str) -> tuple[float, float, float] | None:
    """Return what a GPU's data sheet promises, or None: an L40S is not an L4.

    Args:
        gpu: The name that PyTorch gives it.

    Returns:
        TFLOP/s of dense 16-bit products (bfloat16; float16 where there are no units for it),
        TFLOP/s of float32 without TensorFloat-32, GB/s of memory.
    """
    table = pd.read_csv(files.DATA / "gpu_peaks.tsv", sep="\t", index_col="GPU")
    return tuple(table.loc[gpu].tolist()) if gpu in table.index else None


def flops(config, length: int, texts: int = 1) -> int:
    """Count the floating-point operations of BertModel's forward pass; a multiply-add is two.

    For each token a layer has four products of width x width and two of width x intermediate; for
    each pair of tokens a score and a weighted sum (Kaplan et al. 2020, section 2.1). The pooler has
    one product for each text.
    """
    width, inner = config.hidden_size, config.intermediate_size
    layer = length * 2 * (4 * width**2 + 2 * width * inner) + 4 * length**2 * width
    return texts * (config.num_hidden_layers * layer + 2 * width**2)


def show_padding(ways: dict[str, tuple]) -> None:
    """Show text and padding of a corpus; for each way the true lengths and the padded ones."""
    fig, panels = plots.plt.subplots(1, len(ways), figsize=(10, 3.8), sharex=True, sharey=True)
    shares = []
    for ax, (name, (real, full)) in zip(panels, ways.items(), strict=True):
        rows = range(len(real))
        ax.barh(rows, full, height=1, color=plots.ORANGE, label="padding")
        ax.barh(rows, real, height=1, color=plots.BLUE, label="text")
        share = 1 - real.sum() / full.sum()
        ax.set_title(f"{name}:\n{share:.0%} padding", fontsize=11)
        ax.set_xlabel("tokens computed")
        shares.append(f"{name} {share:.0%}")
    panels[0].set_ylabel("texts")
    panels[0].invert_yaxis()
    panels[-1].legend(loc="lower right")
    alt = f"A bar of tokens for each text, blue, and its padding, orange: {'; '.join(shares)}."
    plots.show(fig, "The coloured area is the work; what is orange is computed for nothing.", alt)


def show_limits(limits: dict, measured: dict[str, dict], best: str, rate: float) -> None:
    """Show the limits of each GPU (texts/s, by batch), milliseconds measured, and our best rate."""
    fig, ax = plots.plt.subplots(figsize=(9, 5.2))
    names = dict.fromkeys([*limits, *measured])
    colours = dict(zip(names, plots.PALETTE, strict=False))
    for gpu, table in limits.items():
        ax.plot(table.min(axis=1), color=colours[gpu], linewidth=3)
        roof = table.drop(columns="overhead").min(axis=1)
        ax.plot(roof, ":", color=colours[gpu], linewidth=2)
        end = (table.index[-1], roof.iloc[-1])
        ax.annotate(gpu, end, (8, -4), textcoords="offset points", color=colours[gpu], size=13)
    for gpu, ms in measured.items():
        rates = [1000 * count / each for count, each in ms.items()]
        ax.plot(list(ms), rates, "o", color=colours[gpu], markersize=9, markeredgecolor="black")
    ax.axhline(rate, color=plots.GREY, linestyle="--")
    ax.text(1, 1.2 * rate, best, color=plots.GREY)
    styles = {
        "-": "limit in plain PyTorch, fed by this CPU",
        ":": "limit without overhead",
        "o": "measured elsewhere",
    }
    for style, label in styles.items():
        ax.plot([], [], style, color="black", label=label)
    ax.set(xscale="log", yscale="log", xlabel="texts of 128 tokens in a batch", ylabel="texts/s")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter("{x:,.0f}")
    ax.legend(loc="lower right", bbox_to_anchor=(1, 0.1))
    alt = f"Texts a second over the batch, a line for each GPU; dashed: {best}, {rate:,.0f}."
    plots.show(fig, "In small batches all GPUs share one limit; large ones tell them apart.", alt)
