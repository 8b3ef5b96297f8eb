"""How fast a GPU could be: the roofline of a BERT (notebook 07)."""

# The vendors' data sheets, by the names that PyTorch gives: TFLOP/s of dense 16-bit products
# (bfloat16; float16 on T4 and V100, which have no bfloat16 units), TFLOP/s of float32 without
# TensorFloat-32, GB/s of memory.
PEAKS = {
    "Tesla T4": (65, 8.1, 320),
    "Tesla V100-SXM2-16GB": (125, 15.7, 900),
    "Tesla V100-SXM2-32GB": (125, 15.7, 900),
    "NVIDIA A100-SXM4-40GB": (312, 19.5, 1555),
    "NVIDIA A100-SXM4-80GB": (312, 19.5, 2039),
    "NVIDIA L4": (121, 30.3, 300),
    "NVIDIA H100 PCIe": (756, 51, 2000),
    "NVIDIA H100 80GB HBM3": (989, 67, 3350),
    "NVIDIA H200": (989, 67, 4800),
}


def peaks(gpu: str) -> tuple[float, float, float] | None:
    """Return the row of `PEAKS` with exactly this name, or None: an L40S is not an L4."""
    return PEAKS.get(gpu)


def flops(config, length: int, texts: int = 1) -> int:
    """Count the floating-point operations of BertModel's forward pass; a multiply-add is two.

    For each token a layer has four products of width x width and two of width x intermediate; for
    each pair of tokens a score and a weighted sum (Kaplan et al. 2020, section 2.1). The pooler has
    one product for each text.
    """
    width, inner = config.hidden_size, config.intermediate_size
    layer = length * 2 * (4 * width**2 + 2 * width * inner) + 4 * length**2 * width
    return texts * (config.num_hidden_layers * layer + 2 * width**2)


def bound(config, length: int, texts: int, teraflops: float, gigabytes: float, size: int) -> float:
    """Return the roofline, the most texts/s in batches of `texts`, each of `length` tokens.

    A batch takes at least as long as its operations at `teraflops` TFLOP/s, and as reading the
    layers' weights once, of `size` bytes each, at `gigabytes` GB/s (Williams et al., 2009).
    """
    width, inner = config.hidden_size, config.intermediate_size
    weights = config.num_hidden_layers * (4 * width**2 + 2 * width * inner) * size
    computing = flops(config, length, texts) / (teraflops * 1e12)
    return texts / max(computing, weights / (gigabytes * 1e9))
