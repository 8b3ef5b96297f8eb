"""Shared code of *BERT on any device*: the plumbing behind the notebooks.

Every notebook imports it first. Importing it loads nothing that has to be installed; it only sets
what torch, transformers and tokenizers read once, at their own import, so that their messages do
not fill a notebook and their threads fit the machine.
"""

import logging
import os
import sys
import warnings

from helpers.core import machine

__version__ = "0.1.0"


def _quiet_start() -> None:
    """Set what has to stand before torch and transformers are imported."""
    # Forked workers and Rust threads do not mix: tokenizers would warn about it.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # A repository with only a .bin file would start a thread that asks the hub for a conversion.
    os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    # On Windows the hub's cache copies instead of linking, and says so for each file.
    os.environ.setdefault("HF_HUB_DISABLE_SYMLINKS_WARNING", "1")
    # On Linux, torch's threads otherwise spin while they wait for each other. On a shared machine
    # (Binder, a busy laptop) that burns the very CPU time they wait for.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # torch's profiler, which measures memory, remarks on its tracing hooks on stderr.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    # transformers imports torchao, which reports its missing CUDA libraries on a CPU build
    # ("Failed to load ..."); torch remarks on torchao's enums. Neither concerns the reader's code.
    logging.getLogger("torchao").setLevel(logging.ERROR)
    logging.getLogger("torch.utils._pytree").addFilter(
        lambda record: "register_constant" not in record.getMessage()
    )
    # peft asks transformers by an old name whether checkpointing is on.
    warnings.filterwarnings(
        "ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning
    )


def _threads_within_the_quota() -> None:
    """Start no more threads than a container has CPUs: libraries count those of its host."""
    cpus = machine.usable_cpus()
    if cpus < machine.visible_cpus():
        for library in ("OMP", "MKL", "OPENBLAS"):
            os.environ.setdefault(f"{library}_NUM_THREADS", str(cpus))


_quiet_start()
_threads_within_the_quota()
if "ipykernel" in sys.modules:  # in a notebook
    from helpers.core import processes

    processes.warn_of_other_kernels()
