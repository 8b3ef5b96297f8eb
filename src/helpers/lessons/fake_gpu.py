"""Run code on fake tensors (shapes without data) and enter every storage in a ledger.

It knows no BERT. Sizes are bytes unless a name says otherwise; 1 GiB = 2**30 bytes.
"""

import contextlib
from collections.abc import Iterator
from unittest import mock

from helpers.core import machine
from helpers.core.tensors import gib_to_bytes
from helpers.lessons.ledger import CUBLAS_WORKSPACE, CUDA_CONTEXT, Ledger

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import Module, Parameter, functional
from torch.optim.optimizer import register_optimizer_step_pre_hook

RNG_STATE = 5056  # bytes of the CPU generator's state; checkpointing keeps one for every layer


def _cuda_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    """Keep what CUDA's memory-efficient attention keeps: each layer's float mask, padded to 8."""
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(
                ~attn_mask, float("-inf")
            )
        columns = attn_mask.shape[-1]
        if columns % 8:
            attn_mask = functional.pad(attn_mask, (0, 8 - columns % 8))[..., :columns]
        attn_mask = attn_mask.expand(*query.shape[:3], columns)
    train = torch.is_grad_enabled() and query.requires_grad
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    return kernel(query, key, value, attn_mask, train, dropout_p, is_causal, scale=scale)[0]


def _cuda_dropout(input, p=0.5, training=True, inplace=False):
    """Keep a mask of one byte a number, as CUDA's fused dropout does."""
    return torch.native_dropout(input, p, True)[0] if training and p else input


def _cuda_foreach(optimizer, args, kwargs) -> None:
    """Let an optimizer take all parameters at once, as it does by itself on a GPU."""
    for group in optimizer.param_groups:
        if group.get("foreach", False) is None and not group.get("fused"):
            group["foreach"] = True


def _replace_tensors(module, fn, recurse=True):
    """Do what `Module._apply` (`.to()`, `.half()`) does; torch cannot swap fake ones in place."""
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
    """Return a fake tensor of the same shape; torch's own deepcopy would corrupt memory."""
    new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    new = Parameter(new, tensor.requires_grad) if isinstance(tensor, Parameter) else new
    return memo.setdefault(id(tensor), new)


@contextlib.contextmanager
def fake_machine(ledger: Ledger) -> Iterator[None]:
    """Run everything inside on fake tensors; the real random numbers stay as they are."""
    # A GPU's step keeps this state in the computer's memory, not in the GPU's.
    state = 0 if ledger.cuda else RNG_STATE
    patches = [
        (Module, "_apply", _replace_tensors),
        (FakeTensor, "__deepcopy__", _copy_fake),
        (torch, "get_rng_state", lambda: torch.empty(state, dtype=torch.uint8)),
        (torch, "set_rng_state", lambda state: None),
    ]
    with contextlib.ExitStack() as stack:
        if ledger.cuda:
            patches.append((functional, "scaled_dot_product_attention", _cuda_attention))
            patches.append((functional, "dropout", _cuda_dropout))
            stack.callback(register_optimizer_step_pre_hook(_cuda_foreach).remove)
        for owner, name, value in patches:
            stack.enter_context(mock.patch.object(owner, name, value))
        stack.enter_context(ledger)
        yield


class FakeGPU:
    """A GPU of `gib` GiB, in a `with` block: what does not fit raises `torch.OutOfMemoryError`.

    Without CUDA nothing is allocated or computed inside (numbers read as nan), and models have to
    be built inside, from their configurations. With CUDA (or `pretend=False`) the code runs for
    real, and PyTorch is held to `gib` less the context. Ordinary code works, with `gpu.device` for
    the device.
    """

    def __init__(self, gib: float, pretend: bool | None = None):
        self.capacity = gib_to_bytes(gib) - CUDA_CONTEXT - CUBLAS_WORKSPACE
        self.pretend = "cuda" not in machine.devices()[0] if pretend is None else pretend
        self.device = "cpu" if self.pretend else "cuda"
        self._ledger = Ledger(True, self.capacity)
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        if self.pretend:
            self._stack.enter_context(fake_machine(self._ledger))
            return self
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        limit = torch.cuda.set_per_process_memory_fraction
        self._stack.callback(limit, torch.cuda.get_per_process_memory_fraction())
        limit(self.capacity / torch.cuda.mem_get_info()[1])
        return self

    def __exit__(self, *error) -> None:
        self._stack.__exit__(*error)

    @property
    def allocated(self) -> int:
        """Return the bytes that tensors take on the GPU now."""
        return self._ledger.allocated if self.pretend else torch.cuda.memory_allocated()

    @property
    def peak(self) -> int:
        """Return the bytes that a GPU must have for what ran here, with the CUDA context."""
        if not self.pretend:
            return torch.cuda.max_memory_reserved() + CUDA_CONTEXT
        most = max(bytes_ + rounding for bytes_, _, rounding in self._ledger.peaks.values())
        return most + CUDA_CONTEXT + CUBLAS_WORKSPACE
