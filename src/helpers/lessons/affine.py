"""Affine quantization of a matrix, as notebook 05 teaches it."""

import numpy


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
    low, high = (
        numpy.minimum(weights, 0).min(axis, keepdims=True),
        numpy.maximum(weights, 0).max(axis, keepdims=True),
    )
    top = 2 ** (bits - 1) - 1 if symmetric else 2**bits - 1
    reach = numpy.maximum(-low, high) if symmetric else high - low
    scale = numpy.where(reach > 0, reach, 1) / top
    zero = numpy.zeros_like(scale) if symmetric else numpy.round(-low / scale)
    levels = numpy.clip(numpy.round(weights / scale) + zero, -top if symmetric else 0, top)
    return (levels - zero) * scale, scale, zero
