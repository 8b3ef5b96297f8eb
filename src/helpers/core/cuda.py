"""Whether torch can compute on a CUDA device, and if not, why."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from helpers.core import machine
from helpers.core.files import read_system_file


class CudaStatus(NamedTuple):
    """Whether torch can compute on a CUDA device, and a sentence that says why (not)."""

    available: bool
    reason: str


def explain_cuda(
    system: str,  # as sys.platform
    torch: str | None,  # its version, None if it is missing
    build: str | None,  # the CUDA or ROCm of torch, None for a CPU-only build
    gpu: bool | None,  # whether there is an NVIDIA GPU, None if unknown
    driver: bool,  # whether the driver's library loads
    visible: str | None,  # the variable CUDA_VISIBLE_DEVICES
    names: Sequence[str],  # of the devices that torch can use
    foreign: Sequence[str] = (),  # of those that this build of torch has no code for
) -> CudaStatus:
    """Name the cause that has to be mended first where CUDA is absent."""
    no_code = f"this build of torch (for CUDA {build}) has no code for {', '.join(foreign)}"
    if names:
        reason = f"torch can use {len(names)} CUDA device(s): {', '.join(names)}."
        if foreign:
            reason += f" But {no_code}: it is left out."
    elif foreign:
        reason = f"{no_code}: use the CPU, or a build that has (before Turing, for CUDA 12.6)."
    elif torch is None:
        reason = "torch is not installed in this Python: install it, or start another one."
    elif system == "darwin":
        reason = "Macs have no CUDA: on Apple silicon use 'mps', else 'cpu'."
    elif not (driver or gpu):
        reason = "no NVIDIA GPU was found in this machine: use the CPU, which is enough here."
    elif build is None:
        reason = f"torch {torch} is a CPU-only build: install torch's CUDA build to use the GPU."
    elif not driver:
        reason = "the NVIDIA GPU has no driver: install it, or start the container with the GPU."
    elif visible is not None:
        reason = f"CUDA_VISIBLE_DEVICES={visible!r} hides the GPU: unset it before Python starts."
    else:
        reason = f"the driver gives torch (for CUDA {build}) no GPU: too old? (nvidia-smi)."
    return CudaStatus(bool(names), reason)


def _nvidia_gpu() -> bool | None:
    """Return whether a display controller is NVIDIA's, None where Linux's list is missing."""
    pci = Path("/sys/bus/pci/devices")
    if not pci.is_dir():
        return None
    displays = [path for path in pci.glob("*") if read_system_file(path / "class")[:4] == "0x03"]
    return any(read_system_file(path / "vendor") == "0x10de" for path in displays)


def cuda_status() -> CudaStatus:
    """Say whether CUDA can be used, and if not, why."""
    try:
        import torch
    except ImportError:
        return explain_cuda(sys.platform, None, None, None, False, None, ())
    driver = False
    with contextlib.suppress(OSError):
        driver = bool(ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"))
    visible, names = os.environ.get("CUDA_VISIBLE_DEVICES"), machine.cuda_names()
    facts = (torch.version.cuda or torch.version.hip, _nvidia_gpu(), driver, visible, names)
    facts += (machine.cuda_names(usable=False),)
    return explain_cuda(sys.platform, torch.__version__, *facts)
