"""Adds up the live storages of fake tensors."""

import weakref
from collections import Counter

from helpers.core.tensors import MIB, format_bytes

import torch
import torch._dynamo  # seconds, which the first use of a FakeTensorMode would take
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensor,
    FakeTensorMode,
)
from torch.nn import Parameter
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

CUDA_CONTEXT = 400 * MIB


CUBLAS_WORKSPACE = 8320 * 1024  # PyTorch's default, ":4096:2:16:8"


RNG_STATE = 5056  # bytes of the CPU generator's state; checkpointing keeps one for every layer


aten = torch.ops.aten


IN_PLACE = {  # these allocate nothing: between tensors of one kind they need not be run
    aten.add_.Tensor, aten.mul_.Tensor, aten.addcmul_.default, aten.addcdiv_.default,
    aten.lerp_.Scalar, aten.zero_.default, aten.fill_.Scalar, aten.normal_.default,
    aten.uniform_.default,
}  # fmt: skip


class Ledger(FakeTensorMode):
    """Adds up live storages by label, remembers the peak, and refuses what exceeds `capacity`.

    For a GPU, sizes follow PyTorch's caching allocator (CUDACachingAllocator.cpp): blocks are
    multiples of 512 bytes, cut from segments of 2 MiB (blocks to 1 MiB), of 20 MiB (below 10 MiB),
    or of their own in multiples of 2 MiB.
    """

    def __init__(self, card: bool, capacity: float = float("inf")):
        super().__init__(allow_non_fake_inputs=True)
        self.card, self.capacity, self.inside = card, capacity, False
        self.label, self.phase, self.where = "activations", "", ""
        self.live, self.held, self.segments = {}, Counter(), Counter()
        self.peaks = {}  # of every phase: (bytes, terms, where, what the allocator's segments add)

    def begin(self, phase: str) -> None:
        """Begin a phase of a step; what it allocates gets the phase's label."""
        self.phase = phase
        self.label = "optimizer" if phase == "optimizer step" else "activations"

    @property
    def allocated(self) -> int:
        """Return the bytes that tensors take now."""
        return sum(self.held.values())

    @property
    def reserved(self) -> int:
        """Return the bytes of the segments that the allocator took for them."""
        return sum(-(-taken // unit) * unit for unit, taken in self.segments.items())

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch.compile does not come here: spares every call two wrappers

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if (
            self.inside or func is torch.ops.prim.device.default
        ):  # a step of another operation; a mere question
            return self.dispatch(func, types, args, kwargs or {})
        if any(
            isinstance(arg, Parameter)
            and not isinstance(arg, FakeTensor)
            and not is_traceable_wrapper_subclass(arg)
            for arg in args
        ):
            raise RuntimeError(
                "this model was made outside the pretended GPU, or read from a file, so its "
                "weights are still in this machine's memory: bring it in with `model = "
                "gpu.place(model)`"
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
                return (
                    float("nan") if args[0].is_floating_point() else 0
                )  # .item(): nothing was computed
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
        self.live[key] = [
            self.label,
            size,
            unit,
            block,
            weakref.ref(storage, lambda _: self._drop(key)),
        ]
        self._note_peak()

    def _drop(self, key: int) -> None:
        label, size, unit, block, _ = self.live.pop(key)
        self.held[label] -= size
        self.segments[unit] -= block

    def relabel(self, tensor: torch.Tensor, label: str) -> None:
        """Say what a tensor's memory is for."""
        entry = self.live[tensor.untyped_storage()._cdata]
        self.held[entry[0]] -= entry[1]
        self.held[label] += entry[1]
        entry[0] = label

    def _note_peak(self, workspace: int = 0) -> None:
        now = self.allocated + workspace
        if now > self.peaks.get(self.phase, (0,))[0]:
            terms = self.held + Counter({self.label: workspace})
            rounding = self.reserved - self.allocated
            self.peaks[self.phase] = (now, terms, self.where or "the start", rounding)

    def _out_of_memory(self, size: int) -> str:
        outside, taken = CUDA_CONTEXT + CUBLAS_WORKSPACE, self.reserved
        kept = taken - self.allocated
        return (
            f"CUDA out of memory. Tried to allocate {format_bytes(size)}. GPU 0 (pretended) has a "
            f"total capacity of {format_bytes(self.capacity + outside)} of which "
            f"{format_bytes(self.capacity - taken)} is free. Including non-PyTorch memory, this "
            f"process has {format_bytes(taken + outside)} memory in use. Of the allocated memory "
            f"{format_bytes(self.allocated)} is allocated by PyTorch, and {format_bytes(kept)} is "
            "reserved by PyTorch but unallocated."
        )


def _of_one_kind(args) -> bool:
    kinds = {(arg.shape, arg.dtype) for arg in args if isinstance(arg, torch.Tensor)}
    return len(kinds) == 1 and args[0].is_floating_point()


def _cpu_workspace(func, args) -> int:
    """Bytes that a CPU kernel takes for the length of one call, unseen from outside.

    Fused attention has buffers for every thread (FlashAttentionKernel.cpp); element-wise kernels
    first cast operands of another dtype to the common one (TensorIterator.cpp).
    """
    if "flash_attention_for_cpu" in func.__name__:
        backward = "backward" in func.__name__
        query, key = args[1:3] if backward else args[:2]
        length, head = query.shape[2:]
        rows, columns = (
            min(length, 256 if length >= 768 else 64 if length >= 192 else 32),
            min(key.shape[2], 512),
        )
        scores = (
            rows * columns * (6 if query.element_size() < 4 else 4)
        )  # 16-bit inputs: float32 and 16-bit scores
        return torch.get_num_threads() * (
            2 * scores if backward else scores + rows * (2 + head) * 4
        )
    if torch.Tag.pointwise in func.tags:
        operands = [
            arg
            for arg in args
            if isinstance(arg, torch.Tensor) and arg.dim() and arg.is_floating_point()
        ]
        common = max((arg.element_size() for arg in operands), default=0)
        return sum(arg.numel() * common for arg in operands if arg.element_size() < common)
    return 0
