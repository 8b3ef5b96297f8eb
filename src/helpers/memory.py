"""Memory: know what a step needs before it runs, measure what it took, live through running out, and clear up.

Used by notebook 02. `predict_peak` runs the true step on a pretended machine (`helpers.pretend`) and adds up every
storage that is alive, so it allocates nothing and needs no card.
All sizes are bytes unless a name says otherwise; 1 GiB = 2**30 bytes.
"""

import contextlib
import copy
import ctypes
import gc
import math
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from types import FunctionType, GeneratorType, ModuleType

from helpers.machine import cuda_status, process_memory, synchronize
from helpers.pretend import (
    CUBLAS_WORKSPACE,
    CUDA_CONTEXT,
    GIB,
    MIB,
    Ledger,
    PretendGPU,
    fake_machine,
    gib_to_bytes,
    in_words,
)

import torch
from peft import LoraConfig, get_peft_model
from torch._guards import detect_fake_mode
from torch.nn import Module
from torch.optim.optimizer import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import AutoModelForSequenceClassification

__all__ = [
    "GIB", "MIB", "Freed", "Measured", "Peak", "PretendGPU", "Step", "check_gradients", "free_memory", "freeze_part",
    "largest_batch", "measure_peak", "predict_peak", "state_bytes",
]  # fmt: skip
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


def freeze_part(model: Module, part: str | int) -> None:
    """Take a part out of training: no gradients, no optimizer state, no dropout. Call it after `model.train()`.

    part: "body" (all but the head), "embeddings", or n: the embeddings and the first n layers. Else ValueError.
    """
    body = model.base_model
    layers = getattr(getattr(body, "encoder", getattr(body, "transformer", None)), "layer", None)
    if part != "body" and layers is None:
        raise ValueError(f"{type(body).__name__} has no list of layers of its own: it can be frozen as a whole only")
    count = 0 if part == "embeddings" else part
    if part != "body" and (isinstance(count, bool) or not isinstance(count, Integral) or not 0 <= count <= len(layers)):
        raise ValueError(f'freeze takes "body", "embeddings" or 0 to {len(layers)} layers, not {part!r}')
    for module in [body] if part == "body" else [body.embeddings, *layers[:count]]:
        module.requires_grad_(False).eval()


def check_gradients(model: Module) -> None:
    """After a backward pass: raise RuntimeError if a parameter that should be trained got no gradient."""
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise RuntimeError("no parameter is trainable: all have requires_grad=False")
    missing = [name for name, p in trainable.items() if p.grad is None]
    if len(missing) == len(trainable):
        raise RuntimeError("no parameter has a gradient: call this after loss.backward(), before zero_grad()")
    if missing:
        raise RuntimeError(
            f"{len(missing)} of {len(trainable)} trainable parameters got no gradient ({', '.join(missing[:3])}, ...): "
            "they would never be trained. The usual cause is reentrant gradient checkpointing above frozen layers: "
            "switch it on with use_reentrant=False"
        )


class Step:
    """One step of a BERT-family classifier, in the state it has in the middle of a run (the optimizer's state exists).

    config: a transformers config. batch, length: of one micro-batch. mode: "training" or "inference".
    optimizer: "adamw" or "sgd". freeze: see `freeze_part`. checkpointing: gradient checkpointing in every layer.
    accumulate: micro-batches for one optimizer step. lora: rank of adapters on all linear layers (peft), or None; over
    16-bit weights peft keeps them in float32, and each keeps a float32 copy of its input for the backward pass.
    dtype: of the weights. mixed_precision: bfloat16 autocast over float32 weights. attention: "sdpa" or "eager".
    padded: whether the batch has padding (attention then needs a mask). Raises ValueError for what makes no sense.
    """

    def __init__(
        self, config, batch: int, length: int, *, mode: str = "training", optimizer: str = "adamw",
        freeze: str | int | None = None, checkpointing: bool = False, accumulate: int = 1, lora: int | None = None,
        dtype: str = "float32", mixed_precision: bool = False, attention: str = "sdpa", padded: bool = True,
        device: str = "cpu",
    ):  # fmt: skip
        if isinstance(config, type) or not hasattr(config, "max_position_embeddings"):
            raise ValueError(
                f"a {type(config).__name__} is not the config of a BERT-like model; of a model take model.config"
            )
        limit = config.max_position_embeddings - (2 if "roberta" in config.model_type else 0)
        for name, value, most in (
            ("batch", batch, math.inf), ("length", length, limit), ("accumulate", accumulate, math.inf),
            ("lora", 1 if lora is None else lora, config.hidden_size),
        ):  # fmt: skip
            if isinstance(value, bool) or not isinstance(value, Integral) or not 1 <= value <= most:
                raise ValueError(
                    f"{name} has to be a whole number from 1{f' to {most}' * (most < math.inf)}, not {value!r}"
                )
        dtype = str(dtype).removeprefix("torch.")
        for name, value, allowed in (
            ("mode", mode, ("training", "inference")), ("optimizer", optimizer, ("adamw", "sgd")),
            ("attention", attention, ("sdpa", "eager")), ("dtype", dtype, ("float32", "bfloat16", "float16")),
            ("checkpointing", checkpointing, (False, True)), ("padded", padded, (False, True)),
            ("mixed_precision", mixed_precision, (False, True)),
        ):  # fmt: skip
            if value not in allowed:
                raise ValueError(f"{name} has to be one of {', '.join(map(str, allowed))}, not {value!r}")
        if mixed_precision and dtype != "float32":
            raise ValueError("mixed precision keeps float32 weights: give either mixed_precision or a 16-bit dtype")
        if lora and freeze is not None:
            raise ValueError("LoRA freezes every layer by itself: give either lora or freeze")
        config = copy.deepcopy(config)
        config.use_cache, config.problem_type = False, None  # the kind of loss makes no difference
        self.model = AutoModelForSequenceClassification.from_config(
            config, dtype=getattr(torch, dtype), attn_implementation=attention
        ).to(device)
        if not hasattr(self.model.base_model, "embeddings"):
            raise ValueError(f"{type(self.model).__name__} is not a model of the BERT family")
        self.model.train(mode == "training")
        if checkpointing:
            old_name = "gradient_checkpointing_enable"
            getattr(self.model, "activation_checkpointing_enable", getattr(self.model, old_name))()
        if lora:
            head = ["pre_classifier"]  # DistilBERT's: peft trains it whole, as it does every head
            adapters = LoraConfig(task_type="SEQ_CLS", r=lora, target_modules="all-linear", exclude_modules=head)
            self.model = get_peft_model(self.model, adapters)
        if freeze is not None:
            freeze_part(self.model, freeze)
        # The memory of a third micro-batch is that of the second.
        self.accumulate, self.passes = accumulate, min(accumulate, 2) if mode == "training" else 1
        self.autocast = torch.autocast(device, torch.bfloat16, enabled=mixed_precision)
        ids = torch.ones(batch, length, dtype=torch.long, device=device)
        self.inputs = {"input_ids": ids, "labels": torch.zeros(batch, dtype=torch.long, device=device)}
        if padded and length > 1:
            self.inputs["attention_mask"] = torch.ones_like(ids)
            self.inputs["attention_mask"][0, -1] = 0
        self.optimizer = None
        if mode == "training":
            trained = [p for p in self.model.parameters() if p.requires_grad]
            self.optimizer = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[optimizer](trained, lr=1e-5)
            for p in trained if optimizer == "adamw" else ():  # what AdamW makes for itself in its first step
                moments = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
                self.optimizer.state[p] = {"step": torch.tensor(0.0), **moments}

    def run(self, mark: Callable[[str], None] = lambda phase: None) -> None:
        """Run it; `mark` is told the name of every phase as it begins. Raises RuntimeError if gradients are missing."""
        if self.optimizer is None:
            mark("forward pass")
            with torch.no_grad(), self.autocast:
                self.model(**self.inputs)
            return
        for _ in range(self.passes):
            mark("forward pass")
            with self.autocast:
                loss = self.model(**self.inputs).loss / self.accumulate
            mark("backward pass")
            loss.backward()
            del loss
        check_gradients(self.model)
        mark("optimizer step")
        self.optimizer.step()
        self.optimizer.zero_grad()


@dataclass(frozen=True)
class Peak:
    """The highest moment of one step. `terms`: bytes by what they are for; `moment`: where in the step it came;
    `phases`: the terms at the highest moment of every phase (forward pass, backward pass, optimizer step).
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
        """Bytes that PyTorch hands out, as `torch.cuda.max_memory_allocated` counts: no context, no rounding up."""
        return self.total - self.terms.get("context", 0) - self.terms.get("allocator", 0)

    def verdict(self, gib: float, margin: float = 0.1) -> str:
        """For a memory of `gib` GiB: "fits", "tight" (uses the last `margin` of it) or "does not fit"."""
        room = _room(gib, margin)
        return "fits" if self.total <= room else "tight" if self.total <= gib_to_bytes(gib) else "does not fit"

    def __str__(self) -> str:
        terms = ", ".join(f"{name} {in_words(size)}" for name, size in self.terms.items())
        return f"{in_words(self.total)} ({terms}), reached in the {self.moment}"

    def _repr_html_(self) -> str:
        rows = [*self.terms.items(), ("total", self.total)]
        cells = "".join(f"<tr><th>{name}</th><td>{in_words(size)}</td></tr>" for name, size in rows)
        return f"<table>{cells}</table><p>In the {self.moment}. Assumed: {'; '.join(self.assumptions)}.</p>"


def _room(gib: float, margin: float) -> float:
    """The bytes of a memory of `gib` GiB of which the share `margin` stays free."""
    if isinstance(margin, bool) or not isinstance(margin, Real) or not 0 <= margin < 1:
        raise ValueError(f"margin is a share of the memory from 0 to below 1, such as 0.1, not {margin!r}")
    return gib_to_bytes(gib) * (1 - margin)


def _skip_first(step: Step, ledger: Ledger) -> None:
    """Leave a step its second micro-batch: it finds the gradients of the first and needs no less, so it decides."""
    step.passes = 1
    for parameter in step.model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
            ledger.relabel(parameter.grad, "gradients")


_predicted: dict[str, Peak] = {}  # a widget asks again and again


def predict_peak(config, batch: int, length: int, *, device: str = "cpu", **options) -> Peak:
    """Predict the memory peak of one `Step(config, batch, length, **options)` without allocating it.

    config: a transformers config of the BERT family, or a name in `helpers.assets.CATALOGUE`. device: "cpu" or "cuda"
    (modelled, whether a card is there or not). Gradients that are still being made count as activations, the
    optimizer's temporaries as optimizer. Answers are remembered. Raises ValueError as `Step` does.
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f'device has to be "cpu" or "cuda", not {device!r}')
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise ValueError("a prediction knows no autocast around it: give mixed_precision=True, outside of that block")
    if isinstance(config, str):
        from helpers import assets

        config = assets.config(config)
    # As text, else True would find the answer for 1. The CPU's kernels have buffers for every thread.
    key = repr((config, batch, length, device, sorted(options.items()), torch.get_num_threads()))
    if key in _predicted:
        return _predicted[key]
    ledger = Ledger(card=device == "cuda")

    def mark(phase: str) -> None:
        ledger.phase, ledger.label = phase, "optimizer" if phase == "optimizer step" else "activations"

    def got_gradient(name: str, parameter: torch.Tensor) -> None:
        ledger.where = name
        ledger.relabel(parameter.grad, "gradients")

    # Whatever the caller has switched on, the step is one that can train.
    with torch.inference_mode(False), torch.enable_grad(), fake_machine(ledger):
        with torch.device("cpu"):
            step = Step(config, batch, length, **options)
        groups = {"weights": step.model, "inputs": step.inputs, "optimizer": step.optimizer and step.optimizer.state}
        for label, group in groups.items():
            for tensor in _tensors(group):
                ledger.relabel(tensor, label)
        if step.passes > 1:
            _skip_first(step, ledger)
        for name, module in step.model.named_modules():
            module.register_forward_pre_hook(lambda module, args, name=name: setattr(ledger, "where", name))
        for name, parameter in step.model.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda p, name=name: got_gradient(name, p))
        ledger.peaks.clear()
        step.run(mark)
    order = ("weights", "gradients", "optimizer", "activations", "inputs")
    phases = {}
    for phase, (_, held, _, rounding) in ledger.peaks.items():
        phases[phase] = {name: held[name] for name in order if held[name]}
        if ledger.card:
            phases[phase] |= {"workspace": CUBLAS_WORKSPACE, "allocator": rounding, "context": CUDA_CONTEXT}
    highest = max(ledger.peaks, key=lambda phase: ledger.peaks[phase][0])
    moment = f"{highest}, at {ledger.peaks[highest][2]}"
    assumptions = CUDA_ASSUMPTIONS if ledger.card else CPU_ASSUMPTIONS
    return _predicted.setdefault(key, Peak(phases[highest], moment, assumptions, phases))


def largest_batch(config, length: int, gib: float, *, margin: float = 0.1, **options) -> int:
    """The largest micro-batch whose predicted peak leaves `margin` of a memory of `gib` GiB free; 0 if none does.

    Takes what `predict_peak` takes. The peak never falls as the batch grows, so a handful of predictions finds it.
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
    """What a step really took. `reserved` is None on the CPU, whose allocator keeps nothing back."""

    allocated: int
    reserved: int | None
    process: int

    def __str__(self) -> str:
        lines = [f"allocated {in_words(self.allocated)}: what tensors took at the highest moment."]
        if self.reserved is None:
            return f"{lines[0]}\nprocess {in_words(self.process)}: with Python and all libraries."
        kept, context = self.reserved - self.allocated, max(self.process - self.reserved, 0)
        lines.append(f"reserved {in_words(self.reserved)}: PyTorch keeps {in_words(kept)} of it for the next tensors.")
        lines.append(f"process {in_words(self.process)}: {in_words(context)} of it is the CUDA context, which stays.")
        return "\n".join(lines)


def measure_peak(function: Callable[[], object], *holding, device: str = "cpu") -> Measured:
    """Run `function` and measure its memory peak: the CPU profiler's memory events, or CUDA's own counters.

    holding: models, optimizers and tensors that were there before; on the CPU their bytes are added, since the
    profiler sees only what happens during the call, in this thread (CUDA counts everything by itself). Raises
    RuntimeError where there is nothing to measure: on a pretended card, without CUDA, or within another measurement.
    """
    if not callable(function):
        raise TypeError(
            f"measure_peak runs a function, such as `lambda: model(**inputs)`, and got a {type(function).__name__}: "
            "what was called before has used its memory already"
        )
    if device not in ("cpu", "cuda"):
        raise ValueError(f'device has to be "cpu" or "cuda", not {device!r}')
    if detect_fake_mode() is not None:
        raise RuntimeError("nothing is allocated on a pretended card: read gpu.allocated, or measure outside its block")
    if device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(f'{cuda_status().reason} Measure with device="cpu", or predict with device="cuda".')
    if torch.autograd._profiler_enabled():
        raise RuntimeError("a profiler is running, so its events would be lost: measure outside of it")
    if device == "cuda":
        synchronize()
        torch.cuda.reset_peak_memory_stats()
        function()
        synchronize()
        free, total = torch.cuda.mem_get_info()
        return Measured(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), total - free)
    before = _bytes(_tensors(holding))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        function()
    now = peak = 0
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return Measured(before + peak, None, process_memory())


def state_bytes(model: Module, optimizer: Optimizer | None = None) -> dict[str, int]:
    """Count what a model holds now: parameters and trainable (numbers), weights, gradients, optimizer (bytes)."""
    parameters = list(model.parameters())
    # Layers of dynamic quantization have no parameter: their weight is a method.
    packed = [module.weight() for module in model.modules() if callable(getattr(module, "weight", None))]
    return {
        "parameters": sum(p.numel() for p in parameters),
        "trainable": sum(p.numel() for p in parameters if p.requires_grad),
        "weights": _bytes(parameters + packed),
        "gradients": _bytes([p.grad for p in parameters if p.grad is not None]),
        "optimizer": _bytes(_tensors(optimizer.state)) if optimizer else 0,
    }


def _bytes(tensors) -> int:
    """Bytes of the storages behind some tensors, each counted once; of a quantized tensor, of what it is made of."""
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
    """The tensors that a value keeps alive: its items, attributes, gradients, or the frames of an exception."""
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


def _what(thing) -> str:
    kinds = {
        BaseException: "an exception, with the variables of every function it went through",
        Optimizer: "an optimizer: its state and the parameters it trains",
        Module: "a model: its weights and gradients",
    }
    for kind, text in kinds.items():
        if isinstance(thing, kind):
            return text
    graph = any(t.grad_fn is not None for t in _tensors(thing))
    return "an output with its graph, which keeps the activations of that pass as well" if graph else "tensors"


@dataclass(frozen=True)
class Freed:
    """What `free_memory` gave back, in bytes, and who holds the rest: rows of (name, bytes, what it is)."""

    freed: int
    holders: list[tuple[str, int, str]]

    def __str__(self) -> str:
        rows = [f"  {name}: {in_words(size)}, {what}" for name, size, what in self.holders]
        return "\n".join(
            [f"Freed {in_words(self.freed)}.", "Still held by:" if rows else "No name holds a tensor.", *rows]
        )


def free_memory(namespace: dict | None = None) -> Freed:
    """Give back what a notebook keeps alive by itself, and name what the reader's own variables still hold.

    Forgets the last exception (with the variables of the functions it went through) and, in IPython, `Out`, `_` and
    their like; then collects garbage; then empties the caches of the C library (on Linux), CUDA and MPS. Nothing that
    has a name of its own is touched. namespace: where to look for holders, by default the notebook's (or the main
    script's) variables.
    `freed` counts CUDA's allocated bytes when CUDA is in use, else the memory of this process.
    """
    if not isinstance(namespace, dict | None):
        raise TypeError(
            f"free_memory deletes no {type(namespace).__name__}: use `del` for its name, then free_memory()"
        )
    in_use = torch.cuda.memory_allocated if torch.cuda.is_initialized() else process_memory
    before = in_use()
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    errors = [getattr(sys, name, None) for name in ("last_exc", "last_value")] + [sys.exc_info()[1]]
    if shell is not None:
        errors += [
            getattr(shell.last_execution_result, "error_in_exec", None),
            getattr(shell.InteractiveTB, "evalue", None),
        ]
        shell.last_execution_result = shell.InteractiveTB.tb = shell.InteractiveTB.evalue = None
        if shell.displayhook.do_full_cache:
            shell.displayhook.flush()
        for names in (shell.user_ns, shell.user_ns_hidden):  # of these, flush forgets some
            names.update({"_": "", "__": "", "___": ""})
    known = {id(None)}  # `raise error from error` makes a ring
    while errors:
        error = errors.pop()
        if id(error) not in known:
            known.add(id(error))
            traceback.clear_frames(error.__traceback__)
            errors += [error.__cause__, error.__context__]
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        vars(sys).pop(name, None)
    gc.collect()
    with contextlib.suppress(TypeError, OSError, AttributeError):  # Windows, macOS
        ctypes.CDLL(None).malloc_trim(0)
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()
    if namespace is None:
        namespace = shell.user_ns if shell is not None else vars(sys.modules["__main__"])
    own = shell.user_ns_hidden if shell is not None else {}  # names that IPython made: Out, exit, get_ipython
    rows = []
    for name, thing in namespace.items():
        with contextlib.suppress(Exception):  # the reader's own classes may raise when they are looked into
            if not name.startswith("_") and name not in own and (size := _bytes(_tensors(thing))):
                rows.append((name, size, _what(thing)))
    return Freed(max(before - in_use(), 0), sorted(rows, key=lambda row: -row[1]))
