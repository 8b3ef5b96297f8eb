"""Affine quantization of a matrix, as notebook 05 teaches it."""

import numpy


def affine(
    weights: numpy.ndarray, bits: int, symmetric: bool, per_channel: bool
) -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray]:
    """Quantize a finite matrix (out, in) and back; a level q stands for (q - zero point) * scale.

    Symmetric levels go from -(2**(bits - 1) - 1) to the same with plus; the others from 0 to
    2**bits - 1. Both represent 0 exactly (Jacob et al., arXiv:1712.05877).

    Returns:
        The restored matrix, and scale and zero point, (1, 1) or (out, 1).
    """
    axis = 1 if per_channel else None
    low = numpy.minimum(weights, 0).min(axis, keepdims=True)
    high = numpy.maximum(weights, 0).max(axis, keepdims=True)
    bottom, top = 0, 2**bits - 1
    if symmetric:
        top = 2 ** (bits - 1) - 1
        bottom = -top
    reach = numpy.maximum(-low, high) if symmetric else high - low
    scale = numpy.where(reach > 0, reach, 1) / top
    zero = numpy.zeros_like(scale) if symmetric else numpy.round(-low / scale)
    levels = numpy.clip(numpy.round(weights / scale) + zero, bottom, top)
    return (levels - zero) * scale, scale, zero
