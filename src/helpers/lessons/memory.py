"""Memory.

Know what a step needs before it runs, measure what it took, live through running out, and clear up.

Used by notebook 02. `predict_peak` runs the true step on a pretended machine (`helpers.pretend`)
and adds up every storage that is alive, so it allocates nothing and needs no card. All sizes are
bytes unless a name says otherwise; 1 GiB = 2**30 bytes.
"""

import contextlib
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Real
from types import FunctionType, GeneratorType, ModuleType

from helpers.core.cuda import cuda_status
from helpers.core.machine import synchronize
from helpers.core.processes import process_memory
from helpers.core.tensors import gib_to_bytes
from helpers.lessons.fake_gpu import (
    CUBLAS_WORKSPACE,
    CUDA_CONTEXT,
    Ledger,
    fake_machine,
    format_bytes,
)
from helpers.lessons.training_step import Step

import torch
from torch._guards import detect_fake_mode
from torch.nn import Module
from torch.optim.optimizer import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

CPU_ASSUMPTIONS = (
    "what PyTorch's CPU allocator hands out; the process and its libraries come on top",
    "in 16 bit, buffers that oneDNN takes on processors with 16-bit instructions come on top",
)
CUDA_ASSUMPTIONS = (
    "modelled from PyTorch's source, not yet confirmed on a card",
    "a CUDA context of 400 MiB (300 to 600, by card and driver) and 8 MiB for cuBLAS (32 on a Hopper card)",
    "memory-efficient fused attention, fused dropout, the optimizer's foreach implementation",
    "blocks packed perfectly into the allocator's segments: fragmentation comes on top",
)


@dataclass(frozen=True)
class Peak:
    """The highest moment of one step.

    `terms`: bytes by what they are for; `moment`: where in the step it came; `phases`: the terms at
    the highest moment of every phase (forward pass, backward pass, optimizer step).
    """

    terms: dict[str, int]
    moment: str
    assumptions: tuple[str, ...]
    phases: dict[str, dict[str, int]]

    @property
    def total(self) -> int:
        """Bytes, everything included."""
        return sum(self.terms.values())

    @property
    def allocated(self) -> int:
        """Bytes that PyTorch hands out, as `torch.cuda.max_memory_allocated` counts.

        No context, no rounding up.
        """
        return self.total - self.terms.get("context", 0) - self.terms.get("allocator", 0)

    def verdict(self, gib: float, margin: float = 0.1) -> str:
        """For a memory of `gib` GiB.

        "fits", "tight" (uses the last `margin` of it) or "does not fit".
        """
        room = _room(gib, margin)
        return (
            "fits"
            if self.total <= room
            else "tight"
            if self.total <= gib_to_bytes(gib)
            else "does not fit"
        )

    def __str__(self) -> str:
        terms = ", ".join(f"{name} {format_bytes(size)}" for name, size in self.terms.items())
        return f"{format_bytes(self.total)} ({terms}), reached in the {self.moment}"

    def _repr_html_(self) -> str:
        rows = [*self.terms.items(), ("total", self.total)]
        cells = "".join(
            f"<tr><th>{name}</th><td>{format_bytes(size)}</td></tr>" for name, size in rows
        )
        return f"<table>{cells}</table><p>In the {self.moment}. Assumed: {'; '.join(self.assumptions)}.</p>"


def _room(gib: float, margin: float) -> float:
    """The bytes of a memory of `gib` GiB of which the share `margin` stays free."""
    if isinstance(margin, bool) or not isinstance(margin, Real) or not 0 <= margin < 1:
        raise ValueError(
            f"margin is a share of the memory from 0 to below 1, such as 0.1, not {margin!r}"
        )
    return gib_to_bytes(gib) * (1 - margin)


def _skip_first(step: Step, ledger: Ledger) -> None:
    """Leave a step its second micro-batch.

    It finds the gradients of the first and needs no less, so it decides.
    """
    step.passes = 1
    for parameter in step.model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
            ledger.relabel(parameter.grad, "gradients")


_predicted: dict[str, Peak] = {}  # a widget asks again and again


def predict_peak(config, batch: int, length: int, *, device: str = "cpu", **options) -> Peak:
    """Predict the memory peak of one `Step(config, batch, length, **options)` without allocating it.

    config: a transformers config of the BERT family, or a name in `catalogue.CATALOGUE`. device:
    "cpu" or "cuda" (modelled, whether a card is there or not). Gradients that are still being made
    count as activations, the optimizer's temporaries as optimizer. Answers are remembered. Raises
    ValueError as `Step` does.
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f'device has to be "cpu" or "cuda", not {device!r}')
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise ValueError(
            "a prediction knows no autocast around it: give mixed_precision=True, outside of that block"
        )
    if isinstance(config, str):
        from helpers.models import assets

        config = assets.config(config)
    # As text, else True would find the answer for 1. The CPU's kernels have buffers for every
    # thread.
    key = repr((config, batch, length, device, sorted(options.items()), torch.get_num_threads()))
    if key in _predicted:
        return _predicted[key]
    ledger = Ledger(card=device == "cuda")

    def mark(phase: str) -> None:
        ledger.phase, ledger.label = (
            phase,
            "optimizer" if phase == "optimizer step" else "activations",
        )

    def got_gradient(name: str, parameter: torch.Tensor) -> None:
        ledger.where = name
        ledger.relabel(parameter.grad, "gradients")

    # Whatever the caller has switched on, the step is one that can train.
    with torch.inference_mode(False), torch.enable_grad(), fake_machine(ledger):
        with torch.device("cpu"):
            step = Step(config, batch, length, **options)
        groups = {
            "weights": step.model,
            "inputs": step.inputs,
            "optimizer": step.optimizer and step.optimizer.state,
        }
        for label, group in groups.items():
            for tensor in _tensors(group):
                ledger.relabel(tensor, label)
        if step.passes > 1:
            _skip_first(step, ledger)
        for name, module in step.model.named_modules():
            module.register_forward_pre_hook(
                lambda module, args, name=name: setattr(ledger, "where", name)
            )
        for name, parameter in step.model.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(
                    lambda p, name=name: got_gradient(name, p)
                )
        ledger.peaks.clear()
        step.run(mark)
    order = ("weights", "gradients", "optimizer", "activations", "inputs")
    phases = {}
    for phase, (_, held, _, rounding) in ledger.peaks.items():
        phases[phase] = {name: held[name] for name in order if held[name]}
        if ledger.card:
            phases[phase] |= {
                "workspace": CUBLAS_WORKSPACE,
                "allocator": rounding,
                "context": CUDA_CONTEXT,
            }
    highest = max(ledger.peaks, key=lambda phase: ledger.peaks[phase][0])
    moment = f"{highest}, at {ledger.peaks[highest][2]}"
    assumptions = CUDA_ASSUMPTIONS if ledger.card else CPU_ASSUMPTIONS
    return _predicted.setdefault(key, Peak(phases[highest], moment, assumptions, phases))


def largest_batch(config, length: int, gib: float, *, margin: float = 0.1, **options) -> int:
    """The largest micro-batch whose predicted peak leaves `margin` of a memory of `gib` GiB free.

    0 if none does.

    Takes what `predict_peak` takes. The peak never falls as the batch grows, so a handful of
    predictions finds it.
    """
    budget = _room(gib, margin)
    peaks, low, high, guess = {0: 0}, 0, None, 16
    while high is None or high - low > 1:
        peaks[guess] = predict_peak(config, guess, length, **options).total
        low, high = (guess, high) if peaks[guess] <= budget else (low, guess)
        if high is None:
            guess = low * 4
        else:  # along the line from low to high; then the next one, which closes the search
            line = low + int((high - low) * (budget - peaks[low]) / (peaks[high] - peaks[low]))
            guess = min(max(line, low + 1), high - 1)
    return low


@dataclass(frozen=True)
class Measured:
    """What a step really took.

    `reserved` is None on the CPU, whose allocator keeps nothing back.
    """

    allocated: int
    reserved: int | None
    process: int

    def __str__(self) -> str:
        lines = [
            f"allocated {format_bytes(self.allocated)}: what tensors took at the highest moment."
        ]
        if self.reserved is None:
            return (
                f"{lines[0]}\nprocess {format_bytes(self.process)}: with Python and all libraries."
            )
        kept, context = self.reserved - self.allocated, max(self.process - self.reserved, 0)
        lines.append(
            f"reserved {format_bytes(self.reserved)}: PyTorch keeps {format_bytes(kept)} of it for the next tensors."
        )
        lines.append(
            f"process {format_bytes(self.process)}: {format_bytes(context)} of it is the CUDA context, which stays."
        )
        return "\n".join(lines)


def measure_peak(function: Callable[[], object], *holding, device: str = "cpu") -> Measured:
    """Run `function` and measure its memory peak.

    The CPU profiler's memory events, or CUDA's own counters.

    holding: models, optimizers and tensors that were there before; on the CPU their bytes are
        added, since the profiler sees only what happens during the call, in this thread (CUDA
        counts everything by itself). Raises
    RuntimeError where there is nothing to measure: on a pretended card, without CUDA, or within
        another measurement.
    """
    if not callable(function):
        raise TypeError(
            f"measure_peak runs a function, such as `lambda: model(**inputs)`, and got a {type(function).__name__}: "
            "what was called before has used its memory already"
        )
    if device not in ("cpu", "cuda"):
        raise ValueError(f'device has to be "cpu" or "cuda", not {device!r}')
    if detect_fake_mode() is not None:
        raise RuntimeError(
            "nothing is allocated on a pretended card: read gpu.allocated, or measure outside its block"
        )
    if device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(
            f'{cuda_status().reason} Measure with device="cpu", or predict with device="cuda".'
        )
    if torch.autograd._profiler_enabled():
        raise RuntimeError(
            "a profiler is running, so its events would be lost: measure outside of it"
        )
    if device == "cuda":
        synchronize()
        torch.cuda.reset_peak_memory_stats()
        function()
        synchronize()
        free, total = torch.cuda.mem_get_info()
        return Measured(
            torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), total - free
        )
    before = _bytes(_tensors(holding))
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        function()
    now = peak = 0
    events = [
        event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return Measured(before + peak, None, process_memory())


def state_bytes(model: Module, optimizer: Optimizer | None = None) -> dict[str, int]:
    """Count what a model holds now.

    Parameters and trainable (numbers), weights, gradients, optimizer (bytes).
    """
    parameters = list(model.parameters())
    # Layers of dynamic quantization have no parameter: their weight is a method.
    packed = [
        module.weight() for module in model.modules() if callable(getattr(module, "weight", None))
    ]
    return {
        "parameters": sum(p.numel() for p in parameters),
        "trainable": sum(p.numel() for p in parameters if p.requires_grad),
        "weights": _bytes(parameters + packed),
        "gradients": _bytes([p.grad for p in parameters if p.grad is not None]),
        "optimizer": _bytes(_tensors(optimizer.state)) if optimizer else 0,
    }


def _bytes(tensors) -> int:
    """Bytes of the storages behind some tensors, each counted once.

    Of a quantized tensor, of what it is made of.
    """
    storages, todo = {}, list(tensors)
    while todo:
        tensor = todo.pop()
        if is_traceable_wrapper_subclass(tensor):
            todo += [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
        else:
            with contextlib.suppress(
                NotImplementedError, ValueError
            ):  # sparse tensors have no storage, lazy ones not yet
                storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
    return sum(storages.values())


def _tensors(thing, depth: int = 5, seen: set | None = None) -> Iterator[torch.Tensor]:
    """The tensors that a value keeps alive.

    Its items, attributes, gradients, or the frames of an exception.
    """
    seen = set() if seen is None else seen
    if id(thing) in seen or depth < 0 or isinstance(thing, (type, ModuleType, str, bytes)):
        return
    seen.add(id(thing))
    inside = list(getattr(thing, "__dict__", {}).values())
    if isinstance(thing, torch.Tensor):
        yield thing
        inside = [thing.grad] if thing.is_leaf else []
    elif isinstance(thing, Module):
        inside = [*thing.parameters(), *thing.buffers()]
    elif isinstance(thing, Optimizer):
        inside = [thing.state, thing.param_groups]
    elif isinstance(thing, Mapping):
        inside = list(thing.values())
    elif isinstance(thing, (list, tuple, set)):
        inside = list(thing)
    elif isinstance(thing, FunctionType):
        inside = [cell.cell_contents for cell in thing.__closure__ or ()]
    elif isinstance(thing, GeneratorType):
        inside = [thing.gi_frame and thing.gi_frame.f_locals]
    elif isinstance(thing, BaseException):
        frames = [frame for frame, _ in traceback.walk_tb(thing.__traceback__)]
        inside = [frame.f_locals for frame in frames if frame.f_locals is not frame.f_globals]
    for item in inside:
        yield from _tensors(item, depth - 1, seen)
