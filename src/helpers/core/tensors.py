"""Bytes of tensors and how they are written."""

import math
from numbers import Real

MIB, GIB = 2**20, 2**30


def format_bytes(n: float) -> str:
    """Bytes as text."""
    return f"{n / GIB:.2f} GiB" if n >= GIB else f"{n / MIB:.2f} MiB"


def gib_to_bytes(value: float) -> float:
    """The bytes of so many GiB. Raises ValueError for what no memory can have."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < math.inf:
        raise ValueError(f"a memory is a number of GiB above 0, such as 8, not {value!r}")
    return float(value) * GIB
