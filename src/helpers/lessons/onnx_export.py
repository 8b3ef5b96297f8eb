"""BERT as an ONNX file.

Export it, open it with ONNX Runtime, feed it, and prove that it computes the same.

Notebook 04 teaches it; notebooks 05, 06 and 08 use it. Only `export` and `parity` need torch: a
file runs without it. (`import onnx` means the package of that name, here as everywhere.)
"""

import contextlib
import gc
import importlib
import inspect
import io
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from helpers.lessons.onnx_inference import feed
from helpers.models import inspection
from helpers.models.batching import two_segments

import numpy as np

OPSET = 23  # the first with an Attention operator; below it, attention is cut into pieces that nothing joins again
OPSETS = range(
    17, 26
)  # below, the exporter silently writes another one; above, ONNX Runtime does not open it
SINGLE_FILE = 100_000_000  # bytes of weights up to which all goes into one file; more lie in a second, mapped into memory
TOLERANCE = 1e-4  # float32 keeps 7 digits; a sum over hundreds of terms, in another order, differs from the 5th or 6th
NAMES = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True)
class Exported:
    """What `export` wrote.

    All files (the first is `path`), their size together, the names of inputs and outputs.
    """

    path: Path
    files: tuple[Path, ...]
    bytes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    opset: int


@dataclass(frozen=True)
class Parity:
    """How far a session's outputs are from the model's.

    table: a pandas row a shape: batch, length, largest absolute difference, share of rows with the same label (NaN if
        the model is no classifier)
    difference: the largest of all; agreement: the smallest of all; mode: the one that the model was found in
    """

    table: object
    difference: float
    agreement: float
    mode: str

    @property
    def ok(self) -> bool:
        """Whether nothing differs by more than `TOLERANCE` and no label changes."""
        return self.difference <= TOLERANCE and not self.agreement < 1

    def __str__(self) -> str:
        labels = (
            "" if np.isnan(self.agreement) else f", labels agree on at least {self.agreement:.1%}"
        )
        found = (
            "; the model was in training mode, and was compared without dropout"
            if self.mode == "train"
            else ""
        )
        return (
            f"largest difference {self.difference:.1e} ({TOLERANCE:.0e} is what rounding in float32 may do){labels}"
            f"{found}"
        )


@contextlib.contextmanager
def _evaluating(model) -> Iterator[None]:
    """Evaluation mode and no gradients inside; afterwards each module has its own mode back."""
    import torch

    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the exporter's remarks off the page.

    On packages not needed here, on names of axes it merges, on itself.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _require_exporter() -> None:
    """Raises ImportError that names the package which torch's exporter lacks, before torch hides it in a long trace."""
    for name in ("onnx", "onnxscript"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            here = [package.version for package in metadata.distributions(name=name)] or ["none"]
            raise ImportError(
                f"torch {metadata.version('torch')} exports through the package {name}; installed here: {here[0]}, "
                f"which fails ({error}). Way out: pip install --upgrade {name}"
            ) from error


def _accepted(model) -> list[str]:
    """The named arguments of a model's forward.

    TypeError for a wrapper, which names others than the model inside.
    """
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"{type(model).__name__} is no model of transformers. If it is a wrapper, give what is inside: "
            "model.merge_and_unload() for adapters, model._orig_mod for a compiled model"
        )
    return list(inspect.signature(model.forward).parameters)


def export(
    model,
    path: str | Path,
    inputs: Mapping | None = None,
    *,
    axes: tuple[str, str] = ("batch", "length"),
    opset: int = OPSET,
) -> Exported:
    """Writes a BERT-family model as an ONNX file whose batch and length are free.

    model: of transformers, on any device; its modes (train, eval) and its attention are as before afterwards
    path: of the .onnx file; with more than `SINGLE_FILE` bytes of weights there is a .onnx.data beside it
    inputs: an example, by name: integer tensors (batch >= 2, length >= 8), say a BatchEncoding; what the model's
        forward does not name is left out. By default ids, mask and (where it takes them) segment ids are made up.
    axes: names of the two free axes in the file
    opset: one of `OPSETS`; from 23 on, attention stays one operator

    The outputs are logits, or last_hidden_state and pooler_output where there is one. Raises
    ValueError for an example from which the axes cannot be told, for bad names, another opset, a
    quantized model and one of other outputs, TypeError for a wrapper around a model, ImportError if
    the exporter lacks a package.
    """
    import torch

    if len(set(axes)) != 2 or not all(
        isinstance(axis, str) and axis.isidentifier() for axis in axes
    ):
        raise ValueError(f'axes are two different names, such as ("batch", "length"), not {axes!r}')
    if opset not in OPSETS:
        raise ValueError(
            f"opset is one of {OPSETS[0]} to {OPSETS[-1]}, not {opset}: the exporter writes none below, and "
            "ONNX Runtime opens none above"
        )
    names = _accepted(model)
    # In torch.ao's and torchao's int8 models the weights are other things; the exporter says so on
    # many pages.
    if odd := [
        name for name, value in model.state_dict().items() if type(value) is not torch.Tensor
    ]:
        raise ValueError(
            f"{odd[0]} is no plain tensor, as in a model that is int8 already: the exporter cannot read it. Way out: "
            "export the float model, and quantize the file"
        )
    device = next(model.parameters()).device
    if inputs is None:  # the values do not matter, but there are models with one kind of segment
        inputs = {name: torch.full((2, 8), int(name != "token_type_ids")) for name in NAMES}
    # Each is cloned: two names for one tensor would become a single input, and the other would have
    # no effect.
    given = {name: torch.as_tensor(value) for name, value in inputs.items() if name in names}
    example = {name: value.to(device).clone() for name, value in given.items()}
    for name, value in example.items():
        if value.is_floating_point():
            raise ValueError(
                f"{name} holds {value.dtype} numbers; token ids, masks and segment ids are whole numbers"
            )
        if value.ndim != 2 or value.shape[0] < 2 or value.shape[1] < 8:
            raise ValueError(
                f"the example's {name} has shape {tuple(value.shape)}: it takes at least 2 texts of 8 tokens: sizes "
                "0 and 1 are special to the exporter, which then stops or keeps them fixed"
            )
    if len({value.shape for value in example.values()}) > 1:
        raise ValueError(
            f"the example's shapes differ: {', '.join(f'{n} {tuple(v.shape)}' for n, v in example.items())}"
        )
    for name in ("input_ids", "attention_mask"):
        if name in names and name not in example:
            raise ValueError(
                f"the example needs {name}, or the file would have no such input; it has {list(inputs)}"
            )
    _require_exporter()
    path = Path(path)
    shapes = {name: {0: axes[0], 1: axes[1]} for name in example}
    with _evaluating(model), _fused_attention(model), _quiet():
        given = [
            name for name, value in model(**example).items() if isinstance(value, torch.Tensor)
        ]
        outputs = (
            ["logits"]
            if "logits" in given
            else [n for n in ("last_hidden_state", "pooler_output") if n in given]
        )
        if not outputs:
            raise ValueError(f"the model gives {given}: export takes an encoder or a classifier")
        options = {
            "dynamic_shapes": shapes,
            "output_names": given,
            "opset_version": opset,
            "verbose": False,
        }
        program = torch.onnx.export(model, kwargs=example, optimize=False, **options)
        before = list(program.model.graph.initializers.values())
        program.optimize()
        graph = program.model.graph
        graph.outputs[:] = [value for value in graph.outputs if value.name in outputs]
        for node in graph:
            node.metadata_props.clear()  # traces through the code, with this machine's paths
        weights = sum(value.const_value.nbytes for value in graph.initializers.values())
        with tempfile.TemporaryDirectory(
            dir=path.parent
        ) as folder:  # so that a failure leaves no half of a pair
            program.save(Path(folder) / path.name, external_data=weights > SINGLE_FILE)
            path.with_name(f"{path.name}.data").unlink(missing_ok=True)
            files = [
                file.replace(path.with_name(file.name))
                for file in sorted(Path(folder).iterdir(), reverse=True)
            ]
    for value in (*before, *graph.initializers.values()):
        value.const_value = (
            None  # the optimizer's rules keep hold of the last graph, and so of all its weights
        )
    del program, graph
    gc.collect()  # the exporter's objects refer to each other in rings
    files = tuple(sorted(files))
    return Exported(
        path, files, sum(f.stat().st_size for f in files), tuple(example), tuple(outputs), opset
    )


@contextlib.contextmanager
def _fused_attention(model) -> Iterator[None]:
    """PyTorch's fused attention inside, which the exporter can turn into one operator.

    Afterwards what it was.
    """
    before = model.config._attn_implementation
    model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def parity(
    model, session, *, batches: Sequence[int] = (1, 2, 5), lengths: Sequence[int] = (1, 7, 512)
) -> Parity:
    """Compares all outputs of a session with those of the model that its file was made of, on padded pairs of texts.

    Padding and both segments matter: with ones everywhere, a file that takes the mask for the
        segment ids looks right.
    batches, lengths: all pairs are tried; lengths end at the model's own longest. Raises ValueError
        for a number below 1 or none at all, and for a file of another model's shapes, TypeError for
        a wrapper around a model.
    """
    import pandas as pd
    import torch

    if not batches or not lengths or min(*batches, *lengths) < 1:
        raise ValueError(f"batches and lengths are numbers from 1 on, not {batches} and {lengths}")
    rows, names, rng = [], _accepted(model), np.random.default_rng(0)
    device, mode = next(model.parameters()).device, "train" if model.training else "eval"
    limit, segments = (
        inspection.max_input_length(model),
        getattr(model.config, "type_vocab_size", 2) > 1,
    )
    for batch in batches:
        for length in sorted({min(length, limit) for length in lengths}):
            inputs = two_segments(batch, length, model.config.vocab_size, rng)
            inputs["token_type_ids"] *= segments  # RoBERTa knows only one kind
            tensors = {
                n: torch.from_numpy(array).to(device) for n, array in inputs.items() if n in names
            }
            with _evaluating(model):
                outputs = model(**tensors)
            found = session.run(None, feed(session, {name: inputs[name] for name in tensors}))
            known = [value for value in outputs.values() if isinstance(value, torch.Tensor)]
            ours = [
                outputs.get(entry.name, value)
                for entry, value in zip(session.get_outputs(), known, strict=False)
            ]
            shapes = [[tuple(value.shape) for value in values] for values in (ours, found)]
            if shapes[0] != shapes[1]:
                raise ValueError(
                    f"the model gives {shapes[0]}, the file {shapes[1]}: it was made of another model"
                )
            pairs = [
                (one.float().cpu().numpy(), other) for one, other in zip(ours, found, strict=True)
            ]
            expected, got = pairs[0]
            same = (
                (expected.argmax(-1) == got.argmax(-1)).mean()
                if expected.ndim == 2
                else float("nan")
            )
            differences = [np.abs(one - other).max() for one, other in pairs]
            rows.append((batch, length, float(np.max(differences)), float(same)))
    table = pd.DataFrame(rows, columns=["batch", "length", "largest difference", "same label"])
    # NumPy's maximum, not pandas', which skips NaN: a file that gives NaN is not equal.
    worst = float(table["largest difference"].to_numpy().max())
    return Parity(table, worst, float(table["same label"].min()), mode)
