"""The dtype that a device has units for, and a model in another dtype (notebook 07)."""

import copy

from helpers.core import machine

import torch
from torch import nn

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
BF16_UNITS = ("avx512_bf16", "amx_bf16", "arm_bf16")


def choose_dtype(device: torch.device, precision: str = "auto") -> torch.dtype:
    """Return the dtype of that name; for "auto" one of 16 bits if the device has units for it."""
    if precision != "auto":
        return DTYPES[precision]
    if device.type == "cuda":
        generation, _ = torch.cuda.get_device_capability(device)
        if generation == 7:
            return torch.float16
        units = generation > 7
    else:
        features = machine.cpu_features() if device.type == "cpu" else {}
        units = any(features.get(unit) for unit in BF16_UNITS)
    return torch.bfloat16 if units else torch.float32


def converted(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a copy of a model in another dtype, which takes no more memory than the copy has."""
    # What deepcopy finds in the memo it takes instead of copying the tensor in its own dtype.
    memo = {id(one): nn.Parameter(one.detach().to(dtype), False) for one in model.parameters()}
    memo |= {id(one): one.to(dtype) for one in model.buffers() if one.is_floating_point()}
    return copy.deepcopy(model, memo)
