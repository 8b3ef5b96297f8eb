"""Predict and measure the memory of a training or inference step (notebook 02).

`predict_peak` runs the true step on a fake machine (`fake_gpu`) and adds up every storage that is
alive: it allocates nothing and needs no GPU. Sizes are bytes unless a name says otherwise.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from helpers.core.machine import synchronize
from helpers.core.processes import process_memory
from helpers.core.tensors import format_bytes, gib_to_bytes, plain, walk
from helpers.lessons.fake_gpu import fake_machine
from helpers.lessons.ledger import CUBLAS_WORKSPACE, CUDA_CONTEXT, Ledger
from helpers.lessons.training_step import Step
from helpers.models import assets, inspection
from helpers.recipes.training_memory import measure_peak as peak_of_call

import torch
from torch._guards import detect_fake_mode
from torch.nn import Module
from torch.optim.optimizer import Optimizer

CPU_ASSUMPTIONS = (
    "what PyTorch's CPU allocator hands out; the process and its libraries come on top",
    "in 16 bit, buffers that oneDNN takes on processors with 16-bit instructions come on top",
)
CUDA_ASSUMPTIONS = (
    "modelled from PyTorch's source, not yet confirmed on a GPU",
    "a CUDA context of 400 MiB (300 to 600, by GPU and driver) and 8 MiB for cuBLAS (32 on a "
    "Hopper GPU)",
    "memory-efficient fused attention, fused dropout, the optimizer's foreach implementation",
    "blocks packed perfectly into the allocator's segments: fragmentation comes on top",
)
ORDER = ("weights", "gradients", "optimizer", "activations", "inputs")
TERMS = (*ORDER, "workspace", "allocator", "context")


@dataclass(frozen=True)
class Peak:
    """The highest moment of one step.

    Attributes:
        terms: Bytes by what they are for.
        moment: Where in the step it came.
        assumptions: What the prediction rests on.
        phases: The terms at the highest moment of the forward pass, backward pass, optimizer step.
    """

    terms: dict[str, int]
    moment: str
    assumptions: tuple[str, ...]
    phases: dict[str, dict[str, int]]

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

    def __str__(self) -> str:
        terms = ", ".join(f"{name} {format_bytes(size)}" for name, size in self.terms.items())
        return f"{format_bytes(self.total)} ({terms}), reached in the {self.moment}"

    def _repr_html_(self) -> str:
        cells = ""
        for name, size in [*self.terms.items(), ("total", self.total)]:
            cells += f"<tr><th>{name}</th><td>{format_bytes(size)}</td></tr>"
        assumed = "; ".join(self.assumptions)
        return f"<table>{cells}</table><p>In the {self.moment}. Assumed: {assumed}.</p>"


_predicted: dict[str, Peak] = {}  # a widget asks again and again


def predict_peak(config, batch: int, length: int, *, device: str = "cpu", **options) -> Peak:
    """Predict the memory peak of one `Step(config, batch, length, **options)`.

    Gradients that are still being made count as activations, the optimizer's temporaries as
    optimizer. Answers are remembered.

    Args:
        config: A transformers config of the BERT family, or a name in the catalogue.
        batch: Texts in a micro-batch.
        length: Tokens of a text.
        device: "cpu" or "cuda" (modelled, whether there is a GPU or not).
        options: Of `Step`.

    Raises:
        ValueError: As `Step` does, and within autocast, which the prediction would not see.
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f'device has to be "cpu" or "cuda", not {device!r}')
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        message = "a prediction does not see autocast around it"
        raise ValueError(f"{message}: give mixed_precision=True, outside of that block")
    config = assets.config(config) if isinstance(config, str) else config
    # As text, else True would find the answer for 1. The CPU's kernels have buffers for a thread.
    key = repr((config, batch, length, device, sorted(options.items()), torch.get_num_threads()))
    if key not in _predicted:
        ledger = Ledger(cuda=device == "cuda")
        # Whatever the caller has switched on, the step is one that can train.
        with torch.inference_mode(False), torch.enable_grad(), fake_machine(ledger):
            with torch.device("cpu"):
                step = Step(config, batch, length, **options)
            _watch(step, ledger)
            step.run(ledger.begin)
        _predicted[key] = _peak(ledger)
    return _predicted[key]


def _watch(step: Step, ledger: Ledger) -> None:
    """Label what is there before a step, and let the ledger know what the step is doing."""
    optimizer = step.optimizer.state if step.optimizer else {}
    for label, held in (("weights", step.model), ("inputs", step.inputs), ("optimizer", optimizer)):
        for tensor in alive(held):
            ledger.relabel(tensor, label)

    def got_gradient(parameter: torch.Tensor, name: str) -> None:
        ledger.where = name
        ledger.relabel(parameter.grad, "gradients")

    for name, module in step.model.named_modules():
        module.register_forward_pre_hook(lambda *_, name=name: setattr(ledger, "where", name))
    for name, parameter in step.model.named_parameters():
        if parameter.requires_grad:
            hook = parameter.register_post_accumulate_grad_hook
            hook(lambda parameter, name=name: got_gradient(parameter, name))
    ledger.peaks.clear()


def _peak(ledger: Ledger) -> Peak:
    phases = {}
    for phase, (_, held, _, rounding) in ledger.peaks.items():
        phases[phase] = {name: held[name] for name in ORDER if held[name]}
        if ledger.cuda:
            own = {"workspace": CUBLAS_WORKSPACE, "allocator": rounding, "context": CUDA_CONTEXT}
            phases[phase] |= own
    highest = max(ledger.peaks, key=lambda phase: ledger.peaks[phase][0])
    moment = f"{highest}, at {ledger.peaks[highest][2]}"
    assumptions = CUDA_ASSUMPTIONS if ledger.cuda else CPU_ASSUMPTIONS
    return Peak(phases[highest], moment, assumptions, phases)


def largest_batch(config, length: int, gib: float, *, margin: float = 0.1, **options) -> int:
    """Return the largest micro-batch whose predicted peak leaves a margin of a memory free.

    It is 0 if none does. The peak never falls as the batch grows, so bisection finds it.

    Args:
        config: See `predict_peak`.
        length: Tokens of a text.
        gib: The memory in GiB.
        margin: The share of it that stays free.
        options: Of `predict_peak`.
    """
    budget = gib_to_bytes(gib) * (1 - margin)
    low, high = 0, 1
    while predict_peak(config, high, length, **options).total <= budget:
        low, high = high, high * 4
    while high - low > 1:
        middle = (low + high) // 2
        if predict_peak(config, middle, length, **options).total <= budget:
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True)
class Measured:
    """What a step really took, in bytes; the CPU's allocator reserves nothing (None)."""

    allocated: int
    reserved: int | None
    process: int

    def __str__(self) -> str:
        lines = [
            f"allocated {format_bytes(self.allocated)}: what tensors took at the highest moment."
        ]
        process = f"process {format_bytes(self.process)}"
        if self.reserved is None:
            return f"{lines[0]}\n{process}: with Python and all libraries."
        kept = format_bytes(self.reserved - self.allocated)
        reserved = f"reserved {format_bytes(self.reserved)}"
        lines.append(f"{reserved}: PyTorch keeps {kept} of it for the next tensors.")
        context = format_bytes(max(self.process - self.reserved, 0))
        lines.append(f"{process}: {context} of it is the CUDA context, which stays.")
        return "\n".join(lines)


def measure_peak(function: Callable[[], object], *holding, device: str = "cpu") -> Measured:
    """Run a function and measure its memory peak.

    Args:
        function: Without arguments.
        holding: Models, optimizers and tensors that were there before; on the CPU their bytes are
            added, since the profiler sees only what happens during the call.
        device: "cpu" or "cuda".

    Raises:
        RuntimeError: On a fake GPU, without CUDA, and within another measurement.
    """
    if detect_fake_mode() is not None:
        raise RuntimeError("nothing is allocated on a fake GPU: read gpu.allocated")
    if device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("PyTorch finds no CUDA here. Predict with device='cuda' instead.")
    if torch.autograd._profiler_enabled():
        raise RuntimeError("a profiler is running, so its events would be lost: measure outside")
    before = storage_bytes(alive(holding))
    synchronize()
    peak = peak_of_call(function, torch.device(device))
    if device == "cpu":
        return Measured(before + peak, None, process_memory())
    synchronize()
    free, total = torch.cuda.mem_get_info()
    return Measured(peak, torch.cuda.max_memory_reserved(), total - free)


def state_bytes(model: Module, optimizer: Optimizer | None = None) -> dict[str, int]:
    """Count parameters and trainable ones (numbers), weights, gradients and optimizer (bytes)."""
    parameters = list(model.parameters())
    packed = [module.weight() for module in model.modules() if inspection.is_packed(module)]
    gradients = [p.grad for p in parameters if p.grad is not None]
    return {
        "parameters": sum(p.numel() for p in parameters),
        "trainable": sum(p.numel() for p in parameters if p.requires_grad),
        "weights": storage_bytes(parameters + packed),
        "gradients": storage_bytes(gradients),
        "optimizer": storage_bytes(alive(optimizer.state)) if optimizer else 0,
    }


def alive(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that a value keeps alive, with the gradients of the leaves."""
    for _, _, tensor in walk(value):
        yield tensor
        if tensor.is_leaf and tensor.grad is not None:
            yield tensor.grad


def storage_bytes(tensors) -> int:
    """Return the bytes of the storages behind tensors, each counted once; none for meta."""
    storages = {}
    for tensor in tensors:
        for part in plain(tensor):
            if part.layout == torch.strided and not (part.is_meta and detect_fake_mode() is None):
                storage = part.untyped_storage()
                storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())
