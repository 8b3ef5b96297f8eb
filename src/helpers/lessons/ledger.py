"""Count the bytes that fake tensors would take, as the CPU's or CUDA's allocator holds them."""

import weakref
from collections import Counter

from helpers.core.tensors import MIB, format_bytes

import torch
import torch._dynamo  # seconds, which the first use of a FakeTensorMode would take
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.nn import Parameter
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

CUDA_CONTEXT = 400 * MIB
CUBLAS_WORKSPACE = 8320 * 1024  # PyTorch's default, ":4096:2:16:8"; 32 MiB on a Hopper GPU
OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate {}. GPU 0 (pretended) has a total capacity of {} of "
    "which {} is free. Including non-PyTorch memory, this process has {} memory in use. Of the "
    "allocated memory {} is allocated by PyTorch, and {} is reserved by PyTorch but unallocated. "
    "If reserved but unallocated memory is large try setting "
    "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
MADE_OUTSIDE = (
    "this model was made outside the pretended GPU, or read from a file, so its weights are still "
    "in this machine's memory: build it inside the block, with `from_config(model.config)`"
)


class Ledger(FakeTensorMode):
    """Adds up live storages by label, remembers the peak, and refuses what exceeds `capacity`.

    For a GPU, sizes follow PyTorch's caching allocator (CUDACachingAllocator.cpp): blocks are
    multiples of 512 bytes, cut from segments of 2 MiB (blocks to 1 MiB), of 20 MiB (below 10 MiB),
    or of their own in multiples of 2 MiB.
    """

    def __init__(self, cuda: bool, capacity: float = float("inf")):
        super().__init__(allow_non_fake_inputs=True)
        self.cuda, self.capacity = cuda, capacity
        self.label, self.phase = "activations", ""
        self.live = {}  # of every storage: [label, bytes, segment's unit, block, reference]
        self.held, self.segments = Counter(), Counter()
        self.peaks = {}  # of every phase: (bytes, terms, what the allocator's segments add)
        self.history = None  # or a list: after every operation its phase, and what is held
        self._inside = False  # a step of another operation

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
        if self._inside or func is torch.ops.prim.device.default:
            return self.dispatch(func, types, args, kwargs or {})
        if any(_is_real_parameter(arg) for arg in args):
            raise RuntimeError(MADE_OUTSIDE)
        self._inside = True
        try:
            out = self.dispatch(func, types, args, kwargs or {})
        except DataDependentOutputException:
            if func is not torch.ops.aten._local_scalar_dense.default:
                raise
            # `.item()`: nothing was computed
            return float("nan") if args[0].is_floating_point() else 0
        finally:
            self._inside = False
        for tensor in out if isinstance(out, (list, tuple)) else (out,):
            if isinstance(tensor, torch.Tensor):
                self._add(tensor)
        if not self.cuda:
            self._note_peak(_cpu_workspace(func, args))
        if self.history is not None:
            self.history.append((self.phase, dict(self.held)))
        return out

    def _add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self.live or not size:
            return
        unit, block = 1, size
        if self.cuda:
            size = block = -(-size // 512) * 512
            unit = 2 * MIB if size <= MIB else 20 * MIB
            if size >= 10 * MIB:
                unit, block = 1, -(-size // (2 * MIB)) * 2 * MIB
        self.segments[unit] += block
        if self.reserved > self.capacity:
            self.segments[unit] -= block
            raise torch.OutOfMemoryError(self._out_of_memory(size))
        self.held[self.label] += size
        reference = weakref.ref(storage, lambda _: self._drop(key))
        self.live[key] = [self.label, size, unit, block, reference]
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
            self.peaks[self.phase] = (now, terms, rounding)

    def _out_of_memory(self, size: int) -> str:
        outside, taken = CUDA_CONTEXT + CUBLAS_WORKSPACE, self.reserved
        total, free = self.capacity + outside, self.capacity - taken
        sizes = (size, total, free, taken + outside, self.allocated, taken - self.allocated)
        return OUT_OF_MEMORY.format(*map(format_bytes, sizes))


def _is_real_parameter(value) -> bool:
    made_of_others = isinstance(value, FakeTensor) or is_traceable_wrapper_subclass(value)
    return isinstance(value, Parameter) and not made_of_others


def _cpu_workspace(func, args) -> int:
    """Return the bytes that a CPU kernel takes for the length of one call, unseen from outside.

    Element-wise kernels first cast operands of another dtype to the common one
    (TensorIterator.cpp).
    """
    if "flash_attention_for_cpu" in func.__name__:
        return _attention_workspace(args, "backward" in func.__name__)
    if torch.Tag.pointwise not in func.tags:
        return 0
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.dim()]
    operands = [tensor for tensor in tensors if tensor.is_floating_point()]
    common = max((operand.element_size() for operand in operands), default=0)
    return sum(part.numel() * common for part in operands if part.element_size() < common)


def _attention_workspace(args, backward: bool) -> int:
    """Return the bytes of fused attention's buffers for threads (FlashAttentionKernel.cpp)."""
    query, key = args[1:3] if backward else args[:2]
    length, head = query.shape[2:]
    block = next(size for size, least in ((256, 768), (64, 192), (32, 0)) if length >= least)
    rows, columns = min(length, block), min(key.shape[2], 512)
    in_16_bit = query.element_size() < 4  # then scores are kept in float32 and in 16 bit
    scores = rows * columns * (6 if in_16_bit else 4)
    each = 2 * scores if backward else scores + rows * (2 + head) * 4
    return torch.get_num_threads() * each
