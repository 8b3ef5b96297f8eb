"""Export BERT-family models as ONNX files, and prove that they compute the same.

Notebook 04 teaches it; notebooks 05 and 08 use it. Opening and running a file is in
onnx_inference, which needs no torch.
"""

import contextlib
import gc
import importlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from helpers.core.quiet import quiet
from helpers.lessons.onnx_inference import feed
from helpers.models import inspection
from helpers.models.batching import two_segments
from helpers.recipes.onnx_export import INPUTS as NAMES
from helpers.recipes.onnx_export import example_inputs

import numpy as np
import pandas as pd
import torch
from transformers import PreTrainedModel

OPSET = 23  # the first with an Attention operator; below, attention is cut into many pieces
SINGLE_FILE = 100_000_000  # bytes of weights from which they lie in a second, mapped file
# float32 keeps 7 digits; a sum over hundreds of terms, in another order, differs from the 5th on.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Exported:
    """What `export` wrote.

    Attributes:
        path: The .onnx file.
        files: All files that belong together; a model of several moves as one.
        bytes: Their size together.
        inputs: The names that the file takes.
        outputs: The names that it gives.
    """

    path: Path
    files: tuple[Path, ...]
    bytes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def export(model: PreTrainedModel, path: str | Path, inputs: Mapping | None = None) -> Exported:
    """Write a model as an ONNX file whose batch and length are free.

    Args:
        model: An encoder or classifier, on any device; its modes and its attention implementation
            are as before afterwards.
        path: Of the .onnx file; large weights lie in a second file beside it.
        inputs: An example, by name: (batch >= 2, length >= 8). By default it is made up.

    Raises:
        TypeError: For a wrapper, whose `forward` has other inputs than the model inside.
        ValueError: For int8 weights, for an example from which the free axes cannot be told or
            with an unknown name, and for a model without such outputs.
        ImportError: If the exporter lacks a package.
    """
    example = _example(model, inputs)
    _require_exporter()
    path = Path(path)
    with inspection.eval_mode(model), torch.no_grad(), _fused_attention(model), quiet(stdout=True):
        given = [name for name, value in model(**example).items() if torch.is_tensor(value)]
        wanted = ["logits"] if "logits" in given else ["last_hidden_state", "pooler_output"]
        outputs = tuple(name for name in wanted if name in given)
        if not outputs:
            raise ValueError(f"the model gives {given}: export takes an encoder or a classifier")
        program = torch.onnx.export(
            model,
            kwargs=example,
            dynamic_shapes={name: {0: "batch", 1: "length"} for name in example},
            output_names=given,
            opset_version=OPSET,
            optimize=False,
            verbose=False,
        )
        files = _save(program, path, outputs)
    del program
    gc.collect()  # the exporter's objects refer to each other in rings
    size = sum(file.stat().st_size for file in files)
    return Exported(path, files, size, tuple(example), outputs)


def _example(model: PreTrainedModel, inputs: Mapping | None) -> dict[str, torch.Tensor]:
    """Return an example of the model's inputs, and refuse what would export something else."""
    if not isinstance(model, PreTrainedModel):
        name = type(model).__name__
        message = "model.merge_and_unload() for adapters, model._orig_mod for a compiled one"
        raise TypeError(f"{name} is not a model of transformers: take the one inside ({message})")
    for name, value in model.state_dict().items():
        if type(value) is not torch.Tensor:
            message = "is not a plain tensor, as in an int8 model: export the float model"
            raise ValueError(f"{name} {message}, and quantize the file")
    own = example_inputs(model)
    if inputs is None:
        inputs = own
        if getattr(model.config, "type_vocab_size", 2) < 2 and "token_type_ids" in own:
            inputs = own | {"token_type_ids": torch.zeros_like(own["token_type_ids"])}
    if unknown := set(inputs) - set(NAMES):
        raise ValueError(f"the example names {sorted(unknown)}; inputs are {', '.join(NAMES)}")
    # Each is cloned: two names for one tensor would become a single input of the file.
    device = next(model.parameters()).device
    given = {n: torch.as_tensor(v).to(device).clone() for n, v in inputs.items() if n in own}
    shapes = {tuple(value.shape) for value in given.values()}
    shape = shapes.pop() if shapes else ()
    if shapes or len(shape) != 2 or shape[0] < 2 or shape[1] < 8:
        message = "it takes at least 2 texts of 8 tokens, since sizes 0 and 1 would stay fixed"
        raise ValueError(f"the example's shape is {shape}: {message}")
    missing = [name for name in ("input_ids", "attention_mask") if name not in given]
    if missing:
        raise ValueError(f"the example needs {missing[0]}, or the file would have no such input")
    return given


def _require_exporter() -> None:
    """Raise ImportError that names the package which torch's exporter lacks."""
    for name in ("onnx", "onnxscript"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            here = [package.version for package in metadata.distributions(name=name)] or ["none"]
            raise ImportError(
                f"torch {metadata.version('torch')} exports through the package {name}; installed "
                f"here: {here[0]}, which fails ({error}). Way out: pip install --upgrade {name}"
            ) from error


@contextlib.contextmanager
def _fused_attention(model: PreTrainedModel) -> Iterator[None]:
    """Use PyTorch's fused attention, which the exporter can turn into one operator."""
    before = model.config._attn_implementation
    model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _save(program, path: Path, outputs: Sequence[str]) -> tuple[Path, ...]:
    """Write all files of a program, or none, and let go of its weights."""
    before = list(program.model.graph.initializers.values())
    program.optimize()
    graph = program.model.graph
    graph.outputs[:] = [value for value in graph.outputs if value.name in outputs]
    for node in graph:
        node.metadata_props.clear()  # traces through the code, with this machine's paths
    weights = sum(value.const_value.nbytes for value in graph.initializers.values())
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:  # a failure leaves no half
        program.save(Path(folder) / path.name, external_data=weights > SINGLE_FILE)
        path.with_name(f"{path.name}.data").unlink(missing_ok=True)
        made = sorted(Path(folder).iterdir(), reverse=True)
        files = [file.replace(path.with_name(file.name)) for file in made]
    for value in (*before, *graph.initializers.values()):
        value.const_value = None  # the optimizer's rules keep hold of the last graph
    return tuple(sorted(files))


@dataclass(frozen=True)
class Parity:
    """How far a session's outputs are from the model's.

    Attributes:
        table: A row for each shape: batch, length, largest difference, share of the same labels.
        difference: The largest of all.
        agreement: The smallest share of all; NaN if the model is not a classifier.
        mode: The one that the model was found in, "train" or "eval".
    """

    table: pd.DataFrame
    difference: float
    agreement: float
    mode: str

    @property
    def ok(self) -> bool:
        """Whether nothing differs by more than `TOLERANCE` and no label changes."""
        return self.difference <= TOLERANCE and not self.agreement < 1

    def __str__(self) -> str:
        text = f"largest difference {self.difference:.1e} ({TOLERANCE:.0e} is what rounding in "
        text += "float32 may do)"
        if not np.isnan(self.agreement):
            text += f", labels agree on at least {self.agreement:.1%}"
        if self.mode == "train":
            text += "; the model was in training mode, and was compared without dropout"
        return text


def parity(
    model: PreTrainedModel,
    session,
    *,
    batches: Sequence[int] = (1, 2, 5),
    lengths: Sequence[int] = (1, 7, 512),
) -> Parity:
    """Compare all outputs of a session with those of its model, on padded pairs of texts.

    Padding and both segments matter: with ones everywhere, a file that takes the mask for the
    segment ids looks right.

    Args:
        model: The model that the file was made of.
        session: Of `onnx_inference.session`.
        batches: Their sizes; all pairs with lengths are tried.
        lengths: In tokens, up to what the model reads.

    Raises:
        ValueError: For the file of another model.
    """
    rows, rng = [], np.random.default_rng(0)
    limit = inspection.max_input_length(model)
    mode = "train" if model.training else "eval"
    for batch in batches:
        for length in sorted({min(length, limit) for length in lengths}):
            inputs = two_segments(batch, length, model.config.vocab_size, rng)
            if getattr(model.config, "type_vocab_size", 2) < 2:
                inputs["token_type_ids"][:] = 0  # RoBERTa knows only one kind
            rows.append((batch, length, *_apart(model, session, inputs)))
    table = pd.DataFrame(rows, columns=["batch", "length", "largest difference", "same label"])
    # NumPy's maximum, not pandas', which skips NaN: a file that gives NaN is not equal.
    worst = float(table["largest difference"].to_numpy().max())
    return Parity(table, worst, float(table["same label"].min()), mode)


def _apart(model: PreTrainedModel, session, inputs: dict) -> tuple[float, float]:
    """Return the largest difference of all outputs, and the share of the same labels."""
    accepted = inspection.accepted_inputs(model, inputs)
    tensors = {name: torch.from_numpy(array).to(model.device) for name, array in accepted.items()}
    with inspection.eval_mode(model), torch.no_grad():
        outputs = [value for value in model(**tensors).values() if torch.is_tensor(value)]
    found = session.run(None, feed(session, accepted))
    ours = [value.float().cpu().numpy() for value in outputs[: len(found)]]
    if [one.shape for one in ours] != [other.shape for other in found]:
        raise ValueError("the file's outputs have other shapes: it was made of another model")
    worst = float(
        np.max([np.abs(one - other).max() for one, other in zip(ours, found, strict=True)])
    )
    if ours[0].ndim != 2:
        return worst, float("nan")
    return worst, float((ours[0].argmax(-1) == found[0].argmax(-1)).mean())
