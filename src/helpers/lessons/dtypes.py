"""The dtype that a device has units for (notebook 07)."""

from helpers.core import machine

import torch

BF16_UNITS = ("avx512_bf16", "amx_bf16", "arm_bf16")


def choose_dtype(device: torch.device) -> torch.dtype:
    """Return a dtype of 16 bits if the device has units for it, else float32."""
    if device.type == "cuda":
        generation, _ = torch.cuda.get_device_capability(device)
        if generation == 7:
            return torch.float16
        units = generation > 7
    else:
        features = machine.cpu_features() if device.type == "cpu" else {}
        units = any(features.get(unit) for unit in BF16_UNITS)
    return torch.bfloat16 if units else torch.float32
