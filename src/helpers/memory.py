"""Memory: know what a step needs before it runs, measure what it took, live through running out, and clear up.

Used by notebook 02. `predict_peak` runs the true step on fake tensors (shapes without data) and adds up every storage
that is alive, so it allocates nothing and needs no card; `PretendGPU` uses the same ledger to run out of memory.
All sizes are bytes unless a name says otherwise; 1 GiB = 2**30 bytes.
"""

import contextlib
import copy
import gc
import os
import sys
import traceback
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from unittest import mock

from helpers.machine import process_memory, synchronize

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.nn import Module, Parameter, functional
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

MIB, GIB = 2**20, 2**30
CUDA_CONTEXT = 400 * MIB
CUBLAS_WORKSPACE = 8320 * 1024  # PyTorch's default, ":4096:2:16:8"
RNG_STATE = 5056  # bytes of the CPU generator's state; checkpointing keeps one for every layer
CPU_ASSUMPTIONS = ("what PyTorch's CPU allocator hands out; the process and its libraries come on top",)
CUDA_ASSUMPTIONS = (
    "modelled from PyTorch's source, not yet confirmed on a card",
    "a CUDA context of 400 MiB (300 to 600, by card and driver) and 8 MiB for cuBLAS (32 on a Hopper card)",
    "memory-efficient fused attention, fused dropout, the optimizer's foreach implementation",
    "blocks packed perfectly into the allocator's segments: fragmentation comes on top",
)


def _size(n: float) -> str:
    return f"{n / GIB:.2f} GiB" if n >= GIB else f"{n / MIB:.2f} MiB"


class _Ledger(TorchDispatchMode):
    """Adds up live storages by label, remembers the highest moment, and refuses what exceeds `capacity`.

    For a card, sizes follow PyTorch's caching allocator (CUDACachingAllocator.cpp): blocks are multiples of 512 bytes,
    cut from segments of 2 MiB (blocks to 1 MiB), of 20 MiB (below 10 MiB), or of their own in multiples of 2 MiB.
    """

    def __init__(self, card: bool, capacity: float = float("inf")):
        super().__init__()
        self.card, self.capacity = card, capacity
        self.label, self.phase, self.where = "activations", "", ""
        self.live, self.held, self.segments = {}, Counter(), Counter()
        self.restart()

    def restart(self) -> None:
        """Forget the peaks so far."""
        self.peaks = {}  # of every phase: (bytes, terms, where, what the allocator's segments add)

    @property
    def allocated(self) -> int:
        return sum(self.held.values())

    @property
    def reserved(self) -> int:
        return sum(-(-taken // unit) * unit for unit, taken in self.segments.items())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # two calls in three ask only this: answered here to save the time
        if any(isinstance(arg, Parameter) and not isinstance(arg, FakeTensor) for arg in args):
            raise RuntimeError(
                "this model was made outside the pretended GPU, so its weights are still in this machine's memory: "
                "bring it in with `model = gpu.place(model)`, or build it inside the `with PretendGPU(...)` block"
            )
        try:
            out = func(*args, **(kwargs or {}))
        except DataDependentOutputException:
            if func is not torch.ops.aten._local_scalar_dense.default:
                raise
            return float("nan") if args[0].is_floating_point() else 0  # .item(): nothing was computed
        for tensor in out if isinstance(out, (list, tuple)) else (out,):
            if isinstance(tensor, torch.Tensor):
                self._add(tensor)
        if not self.card:
            self._note_peak(_cpu_workspace(func, args))
        return out

    def _add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self.live or not size:
            return
        unit, block = 1, size
        if self.card:
            size = block = -(-size // 512) * 512
            unit = 2 * MIB if size <= MIB else 20 * MIB
            if size >= 10 * MIB:
                unit, block = 1, -(-size // (2 * MIB)) * 2 * MIB
        self.segments[unit] += block
        if self.reserved > self.capacity:
            self.segments[unit] -= block
            raise torch.OutOfMemoryError(self._out_of_memory(size))
        self.held[self.label] += size
        self.live[key] = [self.label, size, unit, block, weakref.ref(storage, lambda _: self._drop(key))]
        self._note_peak()

    def _drop(self, key: int) -> None:
        label, size, unit, block, _ = self.live.pop(key)
        self.held[label] -= size
        self.segments[unit] -= block

    def relabel(self, tensor: torch.Tensor, label: str) -> None:
        entry = self.live[tensor.untyped_storage()._cdata]
        self.held[entry[0]] -= entry[1]
        self.held[label] += entry[1]
        entry[0] = label

    def _note_peak(self, workspace: int = 0) -> None:
        now = self.allocated + workspace
        if now > self.peaks.get(self.phase, (0,))[0]:
            terms = self.held + Counter({self.label: workspace})
            self.peaks[self.phase] = (now, terms, self.where or "the start", self.reserved - self.allocated)

    def _out_of_memory(self, size: int) -> str:
        outside = CUDA_CONTEXT + CUBLAS_WORKSPACE
        return (
            f"CUDA out of memory. Tried to allocate {_size(size)}. GPU 0 (pretended) has a total capacity of "
            f"{_size(self.capacity + outside)} of which {_size(self.capacity - self.reserved)} is free. Including "
            f"non-PyTorch memory, this process has {_size(self.reserved + outside)} memory in use. Of the allocated "
            f"memory {_size(self.allocated)} is allocated by PyTorch, and {_size(self.reserved - self.allocated)} is "
            "reserved by PyTorch but unallocated."
        )


def _cpu_workspace(func, args) -> int:
    """Bytes that a CPU kernel takes for the length of one call, unseen from outside.

    Fused attention has buffers for every thread (FlashAttentionKernel.cpp); element-wise kernels first cast operands of
    another dtype to the common one (TensorIterator.cpp).
    """
    if "flash_attention_for_cpu" in func.__name__:
        backward = "backward" in func.__name__
        query, key = args[1:3] if backward else args[:2]
        length, head = query.shape[2:]
        rows, columns = min(length, 256 if length >= 768 else 64 if length >= 192 else 32), min(key.shape[2], 512)
        scores = rows * columns * (6 if query.element_size() < 4 else 4)  # 16-bit inputs: float32 and 16-bit scores
        return torch.get_num_threads() * (2 * scores if backward else scores + rows * (2 + head) * 4)
    if torch.Tag.pointwise in func.tags:
        operands = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.dim() and arg.is_floating_point()]
        common = max((arg.element_size() for arg in operands), default=0)
        return sum(arg.numel() * common for arg in operands if arg.element_size() < common)
    return 0


def _card_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    """What CUDA's memory-efficient attention keeps; a boolean mask becomes a float one, padded to 8, in every layer."""
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(~attn_mask, float("-inf"))
        columns = attn_mask.shape[-1]
        if columns % 8:
            attn_mask = functional.pad(attn_mask, (0, 8 - columns % 8))[..., :columns]
        attn_mask = attn_mask.expand(*query.shape[:3], columns)
    train = torch.is_grad_enabled() and query.requires_grad
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    return kernel(query, key, value, attn_mask, train, dropout_p, is_causal, scale=scale)[0]


def _card_dropout(input, p=0.5, training=True, inplace=False):
    """CUDA's fused dropout, which keeps a mask of one byte a number (on the CPU: of the number's own size)."""
    return torch.native_dropout(input, p, True)[0] if training and p else input


def _replace_tensors(module, fn, recurse=True):
    """`Module._apply` for fake parameters, which torch cannot swap in place: `.to()` and `.half()` go through it."""
    for part in module.modules():
        for store in (part._parameters, part._buffers):
            for name, old in store.items():
                if old is not None:
                    with torch.no_grad():
                        new = fn(old)
                    keep = new is old or not isinstance(old, Parameter)
                    store[name] = new if keep else Parameter(new, old.requires_grad)
    return module


def _copy_fake(tensor: torch.Tensor, memo: dict) -> torch.Tensor:
    """A fake tensor of the same shape, also for `copy.deepcopy`: torch's own would copy the mode and corrupt memory."""
    new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    new = Parameter(new, tensor.requires_grad) if isinstance(tensor, Parameter) else new
    return memo.setdefault(id(tensor), new)


@contextlib.contextmanager
def _fake_machine(ledger: _Ledger) -> Iterator[None]:
    """Everything inside runs on fake tensors and is entered in the ledger; this machine's random numbers stay put."""

    def rng_state() -> torch.Tensor:  # of a card's step it would lie in the computer's memory
        return torch.empty(0 if ledger.card else RNG_STATE, dtype=torch.uint8)

    def pick_foreach(optimizer, args, kwargs) -> None:  # as torch.optim does by itself for parameters on a card
        for group in optimizer.param_groups:
            if group.get("foreach", False) is None and not group.get("fused"):
                group["foreach"] = True

    patches = [
        (Module, "_apply", _replace_tensors),
        (FakeTensor, "__deepcopy__", _copy_fake),
        (torch, "get_rng_state", rng_state),
        (torch, "set_rng_state", lambda state: None),
    ]
    with contextlib.ExitStack() as stack:
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        if ledger.card:
            patches += [(functional, "scaled_dot_product_attention", _card_attention)]
            patches += [(functional, "dropout", _card_dropout)]
            stack.callback(register_optimizer_step_pre_hook(pick_foreach).remove)
        for owner, name, value in patches:
            stack.enter_context(mock.patch.object(owner, name, value))
        stack.enter_context(ledger)
        yield


class PretendGPU:
    """A card of `gib` GiB, in a `with` block: what does not fit raises `torch.OutOfMemoryError`, as on that card.

    Without CUDA nothing is allocated or computed inside (numbers read as nan); with CUDA (or `pretend=False`) the code
    runs for real, and PyTorch is held to `gib` less the context. Ordinary code works, with `gpu.device` for the device:
    build models inside, or bring them and their inputs in with `gpu.place`. Raises ValueError if the size is too small
    for a CUDA context, or larger than the real card.
    """

    def __init__(self, gib: float, pretend: bool | None = None):
        self.capacity = gib * GIB - CUDA_CONTEXT - CUBLAS_WORKSPACE
        if self.capacity <= 0:
            raise ValueError(f"a card of {gib} GiB could not even hold the CUDA context of {_size(CUDA_CONTEXT)}")
        self.pretend = not torch.cuda.is_available() if pretend is None else pretend
        self.device = "cpu" if self.pretend else "cuda"
        self._ledger, self._stack = _Ledger(True, self.capacity), contextlib.ExitStack()

    def __enter__(self):
        if self.pretend:
            self._stack.enter_context(_fake_machine(self._ledger))
            return self
        total = torch.cuda.mem_get_info()[1]
        if self.capacity > total:
            raise ValueError(f"this card has {_size(total)}: too small to stand for one with {_size(self.capacity)}")
        torch.cuda.empty_cache()
        self._stack.callback(torch.cuda.set_per_process_memory_fraction, torch.cuda.get_per_process_memory_fraction())
        torch.cuda.set_per_process_memory_fraction(self.capacity / total)
        return self

    def __exit__(self, *error) -> None:
        self._stack.close()

    @property
    def allocated(self) -> int:
        """Bytes that tensors take on the card now."""
        return self._ledger.allocated if self.pretend else torch.cuda.memory_allocated()

    def place(self, thing):
        """A module, a tensor, or a mapping of tensors (a tokenizer's answer), brought to the card and returned."""
        if isinstance(thing, Mapping):
            return {name: self.place(value) for name, value in thing.items()}
        if not self.pretend:
            return thing.to(self.device)
        if isinstance(thing, torch.Tensor):
            return thing if isinstance(thing, FakeTensor) else _copy_fake(thing, {})
        tensors = (*thing.parameters(), *thing.buffers())
        return copy.deepcopy(thing, {id(tensor): self.place(tensor) for tensor in tensors})


def freeze_part(model: Module, part: str | int) -> None:
    """Take a part out of training: no gradients, no optimizer state, no dropout. Call it after `model.train()`.

    part: "body" (all but the head), "embeddings", or n: the embeddings and the first n layers. Else ValueError.
    """
    body = model.base_model
    layers = (body.encoder if hasattr(body, "encoder") else body.transformer).layer
    count = 0 if part == "embeddings" else part
    if part != "body" and not (isinstance(count, int) and 0 <= count <= len(layers)):
        raise ValueError(f'freeze takes "body", "embeddings" or 0 to {len(layers)} layers, not {part!r}')
    for module in [body] if part == "body" else [body.embeddings, *layers[:count]]:
        module.requires_grad_(False).eval()


def check_gradients(model: Module) -> None:
    """After a backward pass: raise RuntimeError if a parameter that should be trained got no gradient."""
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    missing = [name for name, p in trainable.items() if p.grad is None]
    if missing or not trainable:
        raise RuntimeError(
            f"{len(missing)} of {len(trainable)} trainable parameters got no gradient ({', '.join(missing[:3])}, ...): "
            "they would never be trained. The usual cause is reentrant gradient checkpointing above frozen layers: "
            "switch it on with use_reentrant=False"
        )


class Step:
    """One step of a BERT-family classifier, in the state it has in the middle of a run (the optimizer's state exists).

    config: a transformers config. batch, length: of one micro-batch. mode: "training" or "inference".
    optimizer: "adamw" or "sgd". freeze: see `freeze_part`. checkpointing: gradient checkpointing in every layer.
    accumulate: micro-batches for one optimizer step. lora: rank of adapters on all linear layers (peft), or None.
    dtype: of the weights. mixed_precision: bfloat16 autocast over float32 weights. attention: "sdpa" or "eager".
    padded: whether the batch has padding (attention then needs a mask). Raises ValueError for what makes no sense.
    """

    def __init__(
        self, config, batch: int, length: int, *, mode: str = "training", optimizer: str = "adamw",
        freeze: str | int | None = None, checkpointing: bool = False, accumulate: int = 1, lora: int | None = None,
        dtype: str = "float32", mixed_precision: bool = False, attention: str = "sdpa", padded: bool = True,
        device: str = "cpu",
    ):  # fmt: skip
        limit = config.max_position_embeddings - (2 if "roberta" in config.model_type else 0)
        if batch < 1 or accumulate < 1 or not 1 <= length <= limit:
            raise ValueError(f"batch and accumulate have to be at least 1, and length 1 to {limit} for this model")
        for value, allowed in (
            (mode, ("training", "inference")), (optimizer, ("adamw", "sgd")), (attention, ("sdpa", "eager")),
            (dtype, ("float32", "bfloat16", "float16")),
        ):  # fmt: skip
            if value not in allowed:
                raise ValueError(f"{value!r} is not one of {', '.join(allowed)}")
        if mixed_precision and dtype != "float32":
            raise ValueError("mixed precision keeps float32 weights: give either mixed_precision or a 16-bit dtype")
        if lora and freeze is not None:
            raise ValueError("LoRA freezes every layer by itself: give either lora or freeze")
        from transformers import AutoModelForSequenceClassification

        config = copy.deepcopy(config)
        config.use_cache = False
        self.model = AutoModelForSequenceClassification.from_config(
            config, dtype=getattr(torch, dtype), attn_implementation=attention
        ).to(device)
        self.model.train(mode == "training")
        if checkpointing:
            old_name = "gradient_checkpointing_enable"
            getattr(self.model, "activation_checkpointing_enable", getattr(self.model, old_name))()
        if lora:
            from peft import LoraConfig, get_peft_model

            adapters = LoraConfig(task_type="SEQ_CLS", r=lora, target_modules="all-linear")
            with warnings.catch_warnings():  # peft asks transformers by an old name whether checkpointing is on
                warnings.simplefilter("ignore", FutureWarning)
                self.model = get_peft_model(self.model, adapters)
        if freeze is not None:
            freeze_part(self.model, freeze)
        self.accumulate, self.autocast = accumulate, torch.autocast(device, torch.bfloat16, enabled=mixed_precision)
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
        for _ in range(min(self.accumulate, 2)):  # the memory of a third micro-batch is that of the second
            mark("forward pass")
            with self.autocast:
                loss = self.model(**self.inputs).loss / self.accumulate
            mark("backward pass")
            loss.backward()
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
        share = self.total / (gib * GIB)
        return "fits" if share <= 1 - margin else "tight" if share <= 1 else "does not fit"

    def __str__(self) -> str:
        terms = ", ".join(f"{name} {_size(size)}" for name, size in self.terms.items())
        return f"{_size(self.total)} ({terms}), reached in the {self.moment}"

    def _repr_html_(self) -> str:
        rows = [*self.terms.items(), ("total", self.total)]
        cells = "".join(f"<tr><th>{name}</th><td>{_size(size)}</td></tr>" for name, size in rows)
        return f"<table>{cells}</table><p>In the {self.moment}. Assumed: {'; '.join(self.assumptions)}.</p>"


_predicted: dict[tuple, Peak] = {}  # a widget asks again and again


def predict_peak(config, batch: int, length: int, *, device: str = "cpu", **options) -> Peak:
    """Predict the memory peak of one `Step(config, batch, length, **options)` without allocating it.

    config: a transformers config of the BERT family, or a name in `helpers.assets.CATALOGUE`. device: "cpu" or "cuda"
    (modelled, whether a card is there or not). Gradients that are still being made count as activations, the
    optimizer's temporaries as optimizer. Answers are remembered. Raises ValueError as `Step` does.
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f'device has to be "cpu" or "cuda", not {device!r}')
    if isinstance(config, str):
        from helpers import assets

        config = assets.config(config)
    key = (type(config), config.to_json_string(), batch, length, device, frozenset(options.items()))
    if key in _predicted:
        return _predicted[key]
    ledger = _Ledger(card=device == "cuda")

    def mark(phase: str) -> None:
        ledger.phase, ledger.label = phase, "optimizer" if phase == "optimizer step" else "activations"

    def got_gradient(name: str, parameter: torch.Tensor) -> None:
        ledger.where = name
        ledger.relabel(parameter.grad, "gradients")

    with _fake_machine(ledger):
        step = Step(config, batch, length, **options)
        groups = {"weights": step.model, "inputs": step.inputs, "optimizer": step.optimizer and step.optimizer.state}
        for label, group in groups.items():
            for tensor in _tensors(group):
                ledger.relabel(tensor, label)
        for name, module in step.model.named_modules():
            module.register_forward_pre_hook(lambda module, args, name=name: setattr(ledger, "where", name))
        for name, parameter in step.model.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda p, name=name: got_gradient(name, p))
        ledger.restart()
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
    budget = gib * GIB * (1 - margin)
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
        lines = [f"allocated {_size(self.allocated)}: what tensors took at the highest moment."]
        if self.reserved is None:
            return f"{lines[0]}\nprocess {_size(self.process)}: with Python and all libraries."
        kept, context = self.reserved - self.allocated, max(self.process - self.reserved, 0)
        lines.append(f"reserved {_size(self.reserved)}: PyTorch keeps {_size(kept)} of it for the next tensors.")
        lines.append(f"process {_size(self.process)}: {_size(context)} of it is the CUDA context, which stays.")
        return "\n".join(lines)


def measure_peak(function: Callable[[], object], *holding, device: str = "cpu") -> Measured:
    """Run `function` and measure its memory peak: the CPU profiler's memory events, or CUDA's own counters.

    holding: models, optimizers and tensors that were there before; on the CPU their bytes are added, since the
    profiler sees only what happens during the call (CUDA counts them by itself).
    """
    if device == "cuda":
        synchronize()
        torch.cuda.reset_peak_memory_stats()
        function()
        synchronize()
        free, total = torch.cuda.mem_get_info()
        return Measured(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), total - free)
    before = _bytes(_tensors(holding))
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else its native log writes to stderr; read at the first profile
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
    return {
        "parameters": sum(p.numel() for p in parameters),
        "trainable": sum(p.numel() for p in parameters if p.requires_grad),
        "weights": _bytes(parameters),
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
            storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
    return sum(storages.values())


def _tensors(thing, depth: int = 5, seen: set | None = None) -> Iterator[torch.Tensor]:
    """The tensors that a value keeps alive: its items, attributes, gradients, or the frames of an exception."""
    seen = set() if seen is None else seen
    if id(thing) in seen or depth < 0 or isinstance(thing, (type, ModuleType, FunctionType, str, bytes)):
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
        rows = [f"  {name}: {_size(size)}, {what}" for name, size, what in self.holders]
        return "\n".join(
            [f"Freed {_size(self.freed)}.", "Still held by:" if rows else "No name holds a tensor.", *rows]
        )


def free_memory(namespace: dict | None = None) -> Freed:
    """Give back what a notebook keeps alive by itself, and name what the reader's own variables still hold.

    Forgets the last exception (with the variables of the functions it went through) and, in IPython, `Out`, `_` and
    their like; then collects garbage; then empties the caches of CUDA and MPS. Nothing that has a name of its own is
    touched. namespace: where to look for holders, by default the notebook's (or the main script's) variables.
    `freed` counts CUDA's allocated bytes when CUDA is in use, else the memory of this process.
    """
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
    while errors:
        error = errors.pop()
        if error is not None:
            traceback.clear_frames(error.__traceback__)
            errors += [error.__cause__, error.__context__]
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        vars(sys).pop(name, None)
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()
    if namespace is None:
        namespace = shell.user_ns if shell is not None else vars(sys.modules["__main__"])
    own = shell.user_ns_hidden if shell is not None else {}  # names that IPython made: Out, exit, get_ipython
    named = [(n, t, _bytes(_tensors(t))) for n, t in namespace.items() if not n.startswith("_") and n not in own]
    rows = [(name, size, _what(thing)) for name, thing, size in named if size]
    return Freed(max(before - in_use(), 0), sorted(rows, key=lambda row: -row[1]))
