"""A pretended machine.

Code runs on fake tensors (shapes without data) and every storage is entered in a ledger.

Used by notebook 02, through `helpers.memory`, whose predictions are read from the same ledger. It
knows no BERT. All sizes are bytes unless a name says otherwise; 1 GiB = 2**30 bytes.
"""

import contextlib
import copy
import re
from collections.abc import Iterator, Mapping
from unittest import mock

from helpers.core.tensors import format_bytes, gib_to_bytes
from helpers.lessons.ledger import CUBLAS_WORKSPACE, CUDA_CONTEXT, RNG_STATE, Ledger, aten

import torch
import torch._dynamo  # seconds, which the first use of a FakeTensorMode would take
from torch._subclasses.fake_tensor import (
    DynamicOutputShapeException,
    FakeTensor,
)
from torch.nn import Module, Parameter, functional
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def _card_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    """What CUDA's memory-efficient attention keeps.

    A boolean mask becomes a float one, padded to 8, in every layer.
    """
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
    kernel = aten._scaled_dot_product_efficient_attention
    return kernel(query, key, value, attn_mask, train, dropout_p, is_causal, scale=scale)[0]


def _card_dropout(input, p=0.5, training=True, inplace=False):
    """CUDA's fused dropout, which keeps a mask of one byte a number (on the CPU.

    Of the number's own size).
    """
    return torch.native_dropout(input, p, True)[0] if training and p else input


def _replace_tensors(module, fn, recurse=True):
    """`Module._apply` for fake parameters, which torch cannot swap in place.

    `.to()` and `.half()` go through it.
    """
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
    """A fake tensor of the same shape, also for `copy.deepcopy`.

    Torch's own would copy the mode and corrupt memory.
    """
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
    """Everything inside runs on fake tensors and is entered in the ledger.

    This machine's random numbers stay put.
    """

    def rng_state() -> torch.Tensor:  # of a GPU's step it would lie in the computer's memory
        return torch.empty(0 if ledger.card else RNG_STATE, dtype=torch.uint8)

    def pick_foreach(
        optimizer, args, kwargs
    ) -> None:  # as torch.optim does by itself for parameters on a GPU
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
            error.add_note(
                "On fake tensors nothing is computed, so a shape cannot depend on values."
            )
            raise


class FakeGPU:
    """A GPU of `gib` GiB, in a `with` block.

    What does not fit raises `torch.OutOfMemoryError`, as on that GPU.

    Without CUDA nothing is allocated or computed inside (numbers read as nan); with CUDA (or
    `pretend=False`) the code runs for real, and PyTorch is held to `gib` less the context. Ordinary
    code works, with `gpu.device` for the device: build models inside, or bring them and their
    inputs in with `gpu.place`. Raises ValueError if the size is too small for a CUDA context, or
    larger than the real GPU.
    """

    def __init__(self, gib: float, pretend: bool | None = None):
        self.capacity = gib_to_bytes(gib) - CUDA_CONTEXT - CUBLAS_WORKSPACE
        if self.capacity <= 0:
            raise ValueError(
                f"a GPU of {gib} GiB could not even hold the CUDA context of "
                f"{format_bytes(CUDA_CONTEXT)}"
            )
        self.pretend = not torch.cuda.is_available() if pretend is None else pretend
        self.device = "cpu" if self.pretend else "cuda"
        self._ledger, self._inside = Ledger(True, self.capacity), None

    def __enter__(self):
        if self._inside:
            raise RuntimeError(
                "this GPU is in use already: make another FakeGPU for a block within its block"
            )
        with contextlib.ExitStack() as stack:
            if self.pretend:
                stack.enter_context(fake_machine(self._ledger))
            else:
                total = torch.cuda.mem_get_info()[1]
                if self.capacity > total:
                    raise ValueError(
                        f"this GPU has {format_bytes(total)}: too small to stand for "
                        f"{format_bytes(self.capacity)}"
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
            error.add_note('A pretended GPU is not called "cuda": write gpu.device.')

    @property
    def allocated(self) -> int:
        """Bytes that tensors take on the GPU now."""
        return self._ledger.allocated if self.pretend else torch.cuda.memory_allocated()

    def place(self, thing):
        """Return a module, a tensor or a mapping of tensors, brought to the GPU."""
        if not self._inside:
            raise RuntimeError(
                "the GPU is there only inside its block: `with FakeGPU(...) as gpu:`"
            )
        if isinstance(thing, Mapping):
            return {name: self.place(value) for name, value in thing.items()}
        if not isinstance(thing, (Module, torch.Tensor)):
            raise TypeError(
                "place takes a module, a tensor or a mapping of tensors, not a "
                f"{type(thing).__name__}"
            )
        if not self.pretend:
            return thing.to(self.device)
        if isinstance(thing, torch.Tensor):
            return thing if isinstance(thing, FakeTensor) else _copy_fake(thing, {})
        tensors = (*thing.parameters(), *thing.buffers())
        return copy.deepcopy(thing, {id(tensor): self.place(tensor) for tensor in tensors})
