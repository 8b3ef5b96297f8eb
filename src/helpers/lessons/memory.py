"""Predict and measure the memory of a training or inference step (notebook 02).

`predict_peak` runs the true step on a fake machine (`fake_gpu`) and adds up every storage that is
alive: it allocates nothing and needs no GPU. Sizes are bytes unless a name says otherwise.

On the CPU a peak is what PyTorch's allocator hands out; the process comes on top, and in 16 bit
oneDNN's own buffers. On a GPU it is modelled from PyTorch's source and not yet confirmed on one:
with a CUDA context of 400 MiB (300 to 600, by GPU and driver), memory-efficient attention, fused
dropout and foreach optimizers, and without fragmentation.
"""

import bisect
from collections.abc import Callable
from dataclasses import dataclass

from helpers.core.processes import process_memory
from helpers.core.tensors import alive, gib_to_bytes, storage_bytes
from helpers.lessons.fake_gpu import fake_machine
from helpers.lessons.ledger import CUBLAS_WORKSPACE, CUDA_CONTEXT, Ledger
from helpers.lessons.training_step import Step
from helpers.models import assets
from helpers.recipes.training_memory import measure_peak as peak_of_call

import pandas
import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import DynamicOutputShapeException

ORDER = ("weights", "gradients", "optimizer", "activations", "inputs")
TERMS = (*ORDER, "workspace", "allocator", "context")


@dataclass(frozen=True)
class Peak:
    """The highest moment of one step."""

    terms: dict[str, int]  # bytes by what they are for
    moment: str  # the phase of the step in which it came
    phases: dict[str, dict[str, int]]  # the terms at the highest moment of each phase
    attention: str  # the implementation that the model takes: "sdpa" or "eager"

    @property
    def total(self) -> int:
        """Return the bytes, everything included."""
        return sum(self.terms.values())

    @property
    def allocated(self) -> int:
        """Return the bytes as `torch.cuda.max_memory_allocated` counts them."""
        return self.total - self.terms.get("context", 0) - self.terms.get("allocator", 0)

    def verdict(self, gib: float, margin: float = 0.1) -> str:
        """Return "fits", "tight" (uses the last `margin`) or "does not fit" for a memory."""
        if self.total <= gib_to_bytes(gib) * (1 - margin):
            return "fits"
        return "tight" if self.total <= gib_to_bytes(gib) else "does not fit"


_predicted: dict[str, Peak] = {}  # a widget asks again and again


def predict_peak(config, batch: int, length: int, *, device: str = "cpu", **options) -> Peak:
    """Predict the memory peak of one `Step(config, batch, length, **options)`, a classifier's.

    `head="masked-lm"` is for the pretraining task.

    Gradients that are still being made count as activations, the optimizer's temporaries as
    optimizer. Answers are remembered.

    Args:
        config: A transformers config of the BERT family, or a name in the catalogue.
        batch: Texts in a micro-batch.
        length: Tokens of a text.
        device: "cpu" or "cuda" (modelled, whether there is a GPU or not).
        options: Of `Step`.

    Raises:
        ValueError: As `Step` does; for a model that takes shapes from values (DeBERTa-v2); within
            autocast, which the prediction would not see.
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f'device has to be "cpu" or "cuda", not {device!r}')
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise ValueError("predict outside of the autocast block, with mixed_precision=True")
    # As text, else True would find the answer for 1. The CPU's kernels have buffers for a thread.
    key = repr((config, batch, length, device, sorted(options.items()), torch.get_num_threads()))
    if key not in _predicted:
        ledger = Ledger(cuda=device == "cuda")
        attention = _run(ledger, config, batch, length, **options)
        _predicted[key] = _peak(ledger, attention)
    return _predicted[key]


def timeline(config, batch: int, length: int, **options) -> pandas.DataFrame:
    """Return the bytes alive on a GPU after each operation of a step, by what they are for.

    Takes what `predict_peak` takes. The index names the phase of the step.
    """
    ledger = Ledger(cuda=True)
    ledger.history = []
    _run(ledger, config, batch, length, **options)
    phases, held = zip(*ledger.history, strict=True)
    return pandas.DataFrame(held, index=phases).reindex(columns=ORDER).fillna(0)


def _run(ledger: Ledger, config, batch: int, length: int, **options) -> str:
    """Run a step on fake tensors; return the attention implementation of its model."""
    config = assets.config(config) if isinstance(config, str) else config
    # Whatever the caller has switched on, the step is one that can train.
    with torch.inference_mode(False), torch.enable_grad(), fake_machine(ledger):
        with torch.device("cpu"):
            step = Step(config, batch, length, **options)
        _watch(step, ledger)
        try:
            step.run(ledger.begin)
        except DynamicOutputShapeException as error:
            message = "takes shapes from values, which a prediction has not: measure_peak()"
            raise ValueError(f"{type(step.model).__name__} {message}") from error
    return step.model.config._attn_implementation


def _watch(step: Step, ledger: Ledger) -> None:
    """Label what is there before a step, and every gradient as soon as it is made."""
    optimizer = step.optimizer.state if step.optimizer else {}
    for label, held in (("weights", step.model), ("inputs", step.inputs), ("optimizer", optimizer)):
        for tensor in alive(held):
            ledger.relabel(tensor, label)
    for parameter in step.model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(
                lambda trained: ledger.relabel(trained.grad, "gradients")
            )
    ledger.peaks.clear()
    if ledger.history:
        ledger.history.clear()


def _peak(ledger: Ledger, attention: str) -> Peak:
    phases = {}
    for phase, (_, held, rounding) in ledger.peaks.items():
        phases[phase] = {name: held[name] for name in ORDER if held[name]}
        if ledger.cuda:
            own = {"workspace": CUBLAS_WORKSPACE, "allocator": rounding, "context": CUDA_CONTEXT}
            phases[phase] |= own
    highest = max(ledger.peaks, key=lambda phase: ledger.peaks[phase][0])
    return Peak(phases[highest], highest, phases, attention)


def largest_batch(config, length: int, gib: float, *, margin: float = 0.1, **options) -> int:
    """Return the largest micro-batch whose predicted peak leaves a margin of a memory free.

    It is 0 if none does, at most 4,096; the peak never falls as the batch grows. Takes what
    `predict_peak` takes, and the memory in GiB, of which a share of `margin` stays free.
    """
    budget = gib_to_bytes(gib) * (1 - margin)
    size = lambda batch: predict_peak(config, batch, length, **options).total  # noqa: E731
    return bisect.bisect_right(range(1, 4097), budget, key=size)


@dataclass(frozen=True)
class Measured:
    """What a step really took, in bytes."""

    allocated: int  # by tensors, at the highest moment
    reserved: int | None  # by PyTorch, which keeps the rest for the next tensors; not on the CPU
    process: int  # with the CUDA context; on the CPU with Python's libraries


def measure_peak(function: Callable[[], object], *holding, device: str = "cpu") -> Measured:
    """Run a function and measure its memory peak.

    Args:
        function: Without arguments.
        holding: Models, optimizers and tensors that were there before; on the CPU their bytes are
            added, since the profiler sees only what happens during the call.
        device: "cpu" or "cuda".

    Raises:
        RuntimeError: On a fake GPU and within another measurement.
    """
    if detect_fake_mode() is not None:
        raise RuntimeError("nothing is allocated on a fake GPU: read gpu.allocated")
    if torch.autograd._profiler_enabled():
        raise RuntimeError("a profiler is running, so its events would be lost: measure outside")
    before = storage_bytes(alive(holding))
    peak = peak_of_call(function, torch.device(device))
    if device == "cpu":
        return Measured(before + peak, None, process_memory())
    free, total = torch.cuda.mem_get_info()
    return Measured(peak, torch.cuda.max_memory_reserved(), total - free)
