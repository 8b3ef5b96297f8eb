"""Whether torch can compute on a CUDA device, and if not, why."""

import contextlib
import ctypes
import os
import sys
from pathlib import Path
from typing import NamedTuple

from helpers.core.machine import _read


class CudaStatus(NamedTuple):
    """Whether torch can compute on a CUDA device, and a sentence that says why (not)."""

    available: bool
    reason: str


def explain_cuda(system, torch, build, card, driver, visible, names) -> CudaStatus:
    """Names the cause that has to be mended first where CUDA is absent.

    system: as sys.platform; torch: its version or None; build: the CUDA or ROCm it was built for,
        None for a CPU-only build; card: an NVIDIA card is there, None where that cannot be told;
        driver: the driver's library loads;
    visible: the variable CUDA_VISIBLE_DEVICES or None; names: of the devices that torch can use.
    """
    usable = f"torch can use {len(names)} CUDA device(s): {', '.join(names)}."
    causes = (
        (names, usable),
        (torch is None, "torch is not installed in this Python: install it, or start another one."),
        (system == "darwin", "Macs have no CUDA: on Apple silicon use 'mps', else 'cpu'."),
        (
            not (driver or card),
            "no NVIDIA GPU was found in this machine: use the CPU, which is enough here.",
        ),
        (
            build is None,
            f"torch {torch} is a CPU-only build: install torch's CUDA build to use the GPU.",
        ),
        (
            not driver,
            "the NVIDIA GPU has no driver: install it, or start the container with the GPU.",
        ),
        (
            visible is not None,
            f"CUDA_VISIBLE_DEVICES={visible!r} hides the GPU: unset it before Python starts.",
        ),
        (True, f"the driver gives torch (for CUDA {build}) no GPU: too old? (nvidia-smi)."),
    )  # fmt: skip
    return CudaStatus(bool(names), next(sentence for holds, sentence in causes if holds))


def cuda_status() -> CudaStatus:
    """Says whether CUDA can be used, and if not, why.

    No card, CPU-only torch, no driver, or hidden by a variable.
    """
    try:
        import torch
    except ImportError:
        return explain_cuda(sys.platform, None, None, None, False, None, ())
    driver, pci = False, Path("/sys/bus/pci/devices")
    with contextlib.suppress(OSError):
        driver = bool(ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"))
    displays = [path for path in pci.glob("*") if _read(path / "class").startswith("0x03")]
    card = any(_read(path / "vendor") == "0x10de" for path in displays) if pci.is_dir() else None
    names = tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    build, visible = torch.version.cuda or torch.version.hip, os.environ.get("CUDA_VISIBLE_DEVICES")
    return explain_cuda(sys.platform, torch.__version__, build, card, driver, visible, names)
