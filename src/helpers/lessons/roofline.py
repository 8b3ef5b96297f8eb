"""How fast a card could be: the roofline of a BERT."""

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


def flops(config, length: int, texts: int = 1) -> int:
    """Floating-point operations of BertModel's forward pass on texts of `length` tokens.

    A multiply-add counts as two.

    For each token a layer has four products of width x width and two of width x intermediate; for
    each pair of tokens a score and a weighted sum (Kaplan et al. 2020, section 2.1); the pooler has
    one product for each text.
    """
    width, inner = config.hidden_size, config.intermediate_size
    layer = length * 2 * (4 * width**2 + 2 * width * inner) + 4 * length**2 * width
    return texts * (config.num_hidden_layers * layer + 2 * width**2)


def bound(config, length: int, texts: int, teraflops: float, gigabytes: float, size: int) -> float:
    """The roofline.

    The most texts/s in batches of `texts`, at TFLOP/s, GB/s and bytes of a number as given.

    A batch takes at least as long as its operations, and as reading the layers' weights once
    (Williams et al., 2009).
    """
    width, layers = config.hidden_size, config.num_hidden_layers
    weights = layers * (4 * width**2 + 2 * width * config.intermediate_size) * size
    return texts / max(
        flops(config, length, texts) / (teraflops * 1e12), weights / (gigabytes * 1e9)
    )


def peaks(card: str) -> tuple[float, float, float] | None:
    """The vendor's peaks of a card (see `PEAKS`) by the name that PyTorch gives, None for one that is not listed.

    The whole name counts: an L40S is no L4, and a MIG slice of an H100 no H100.
    """
    return PEAKS.get(card)
