"""What a BERT computes, and what a GPU promises (notebook 07)."""

from helpers.core import files

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
