"""A pretended machine: code runs on fake tensors (shapes without data) and every storage is entered in a ledger.

Used by notebook 02, through `helpers.memory`, whose predictions are read from the same ledger. It knows no BERT.
All sizes are bytes unless a name says otherwise; 1 GiB = 2**30 bytes.
"""

import contextlib
import copy
import math
import re
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from numbers import Real
from unittest import mock

import torch
import torch._dynamo  # seconds, which the first use of a FakeTensorMode would take
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.nn import Module, Parameter, functional
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

MIB, GIB = 2**20, 2**30
CUDA_CONTEXT = 400 * MIB
CUBLAS_WORKSPACE = 8320 * 1024  # PyTorch's default, ":4096:2:16:8"
RNG_STATE = 5056  # bytes of the CPU generator's state; checkpointing keeps one for every layer
aten = torch.ops.aten
IN_PLACE = {  # these allocate nothing: between tensors of one kind they need not be run
    aten.add_.Tensor, aten.mul_.Tensor, aten.addcmul_.default, aten.addcdiv_.default, aten.lerp_.Scalar,
    aten.zero_.default, aten.fill_.Scalar, aten.normal_.default, aten.uniform_.default,
}  # fmt: skip


def in_words(n: float) -> str:
    """Bytes as text."""
    return f"{n / GIB:.2f} GiB" if n >= GIB else f"{n / MIB:.2f} MiB"


def gib_to_bytes(value: float) -> float:
    """The bytes of so many GiB. Raises ValueError for what no memory can have."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < math.inf:
        raise ValueError(f"a memory is a number of GiB above 0, such as 8, not {value!r}")
    return float(value) * GIB


class Ledger(FakeTensorMode):
    """Adds up live storages by label, remembers the highest moment, and refuses what exceeds `capacity`.

    For a card, sizes follow PyTorch's caching allocator (CUDACachingAllocator.cpp): blocks are multiples of 512 bytes,
    cut from segments of 2 MiB (blocks to 1 MiB), of 20 MiB (below 10 MiB), or of their own in multiples of 2 MiB.
    """

    def __init__(self, card: bool, capacity: float = float("inf")):
        super().__init__(allow_non_fake_inputs=True)
        self.card, self.capacity, self.inside = card, capacity, False
        self.label, self.phase, self.where = "activations", "", ""
        self.live, self.held, self.segments = {}, Counter(), Counter()
        self.peaks = {}  # of every phase: (bytes, terms, where, what the allocator's segments add)

    @property
    def allocated(self) -> int:
        return sum(self.held.values())

    @property
    def reserved(self) -> int:
        return sum(-(-taken // unit) * unit for unit, taken in self.segments.items())

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch.compile does not come here: spares every call two wrappers

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.inside or func is torch.ops.prim.device.default:  # a step of another operation; a mere question
            return self.dispatch(func, types, args, kwargs or {})
        if any(
            isinstance(arg, Parameter) and not isinstance(arg, FakeTensor) and not is_traceable_wrapper_subclass(arg)
            for arg in args
        ):
            raise RuntimeError(
                "this model was made outside the pretended GPU, or read from a file, so its weights are still in this "
                "machine's memory: bring it in with `model = gpu.place(model)`"
            )
        if func in IN_PLACE and args[0].dim() and _of_one_kind(args):
            out = args[0]
        else:
            self.inside = True
            try:
                out = self.dispatch(func, types, args, kwargs or {})
            except DataDependentOutputException:
                if func is not aten._local_scalar_dense.default:
                    raise
                return float("nan") if args[0].is_floating_point() else 0  # .item(): nothing was computed
            finally:
                self.inside = False
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
        outside, taken = CUDA_CONTEXT + CUBLAS_WORKSPACE, self.reserved
        return (
            f"CUDA out of memory. Tried to allocate {in_words(size)}. GPU 0 (pretended) has a total capacity of "
            f"{in_words(self.capacity + outside)} of which {in_words(self.capacity - taken)} is free. Including "
            f"non-PyTorch memory, this process has {in_words(taken + outside)} memory in use. Of the allocated "
            f"memory {in_words(self.allocated)} is allocated by PyTorch, and {in_words(taken - self.allocated)} is "
            "reserved by PyTorch but unallocated."
        )


def _of_one_kind(args) -> bool:
    kinds = {(arg.shape, arg.dtype) for arg in args if isinstance(arg, torch.Tensor)}
    return len(kinds) == 1 and args[0].is_floating_point()


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
    kernel = aten._scaled_dot_product_efficient_attention
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
    if is_traceable_wrapper_subclass(tensor):
        names, context = tensor.__tensor_flatten__()
        parts = {name: _copy_fake(getattr(tensor, name), memo) for name in names}
        new = type(tensor).__tensor_unflatten__(parts, context, tensor.shape, tensor.stride())
    else:
        new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    new = Parameter(new, tensor.requires_grad) if isinstance(tensor, Parameter) else new
    return memo.setdefault(id(tensor), new)


@contextlib.contextmanager
def fake_machine(ledger: Ledger) -> Iterator[None]:
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
        if ledger.card:
            patches += [(functional, "scaled_dot_product_attention", _card_attention)]
            patches += [(functional, "dropout", _card_dropout)]
            stack.callback(register_optimizer_step_pre_hook(pick_foreach).remove)
        for owner, name, value in patches:
            stack.enter_context(mock.patch.object(owner, name, value))
        stack.enter_context(ledger)
        try:
            yield
        except DynamicOutputShapeException as error:
            error.add_note("On fake tensors nothing is computed, so a shape cannot depend on values.")
            raise


class PretendGPU:
    """A card of `gib` GiB, in a `with` block: what does not fit raises `torch.OutOfMemoryError`, as on that card.

    Without CUDA nothing is allocated or computed inside (numbers read as nan); with CUDA (or `pretend=False`) the code
    runs for real, and PyTorch is held to `gib` less the context. Ordinary code works, with `gpu.device` for the device:
    build models inside, or bring them and their inputs in with `gpu.place`. Raises ValueError if the size is too small
    for a CUDA context, or larger than the real card.
    """

    def __init__(self, gib: float, pretend: bool | None = None):
        self.capacity = gib_to_bytes(gib) - CUDA_CONTEXT - CUBLAS_WORKSPACE
        if self.capacity <= 0:
            raise ValueError(f"a card of {gib} GiB could not even hold the CUDA context of {in_words(CUDA_CONTEXT)}")
        self.pretend = not torch.cuda.is_available() if pretend is None else pretend
        self.device = "cpu" if self.pretend else "cuda"
        self._ledger, self._inside = Ledger(True, self.capacity), None

    def __enter__(self):
        if self._inside:
            raise RuntimeError("this card is in use already: make another PretendGPU for a block within its block")
        with contextlib.ExitStack() as stack:
            if self.pretend:
                stack.enter_context(fake_machine(self._ledger))
            else:
                total = torch.cuda.mem_get_info()[1]
                if self.capacity > total:
                    raise ValueError(
                        f"this card has {in_words(total)}: too small to stand for {in_words(self.capacity)}"
                    )
                torch.cuda.empty_cache()
                before = torch.cuda.get_per_process_memory_fraction()
                stack.callback(torch.cuda.set_per_process_memory_fraction, before)
                torch.cuda.set_per_process_memory_fraction(self.capacity / total)
            self._inside = stack.pop_all()
        return self

    def __exit__(self, kind, error, trace) -> None:
        inside, self._inside = self._inside, None
        inside.__exit__(kind, error, trace)
        if self.pretend and re.search("support for cuda devices|compiled with CUDA", str(error)):
            error.add_note('A pretended card is not called "cuda": write gpu.device.')

    @property
    def allocated(self) -> int:
        """Bytes that tensors take on the card now."""
        return self._ledger.allocated if self.pretend else torch.cuda.memory_allocated()

    def place(self, thing):
        """A module, a tensor, or a mapping of tensors (a tokenizer's answer), brought to the card and returned."""
        if not self._inside:
            raise RuntimeError("the card is there only inside its block: `with PretendGPU(...) as gpu:`")
        if isinstance(thing, Mapping):
            return {name: self.place(value) for name, value in thing.items()}
        if not isinstance(thing, (Module, torch.Tensor)):
            raise TypeError(f"place takes a module, a tensor or a mapping of tensors, not a {type(thing).__name__}")
        if not self.pretend:
            return thing.to(self.device)
        if isinstance(thing, torch.Tensor):
            return thing if isinstance(thing, FakeTensor) else _copy_fake(thing, {})
        tensors = (*thing.parameters(), *thing.buffers())
        return copy.deepcopy(thing, {id(tensor): self.place(tensor) for tensor in tensors})
