"""Export BERT-family models as ONNX files, and prove that they compute the same.

Notebook 04 teaches it; notebooks 05 and 08 use it. Opening and running a file is in
onnx_inference, which needs no torch.
"""

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from helpers.core.quiet import quiet
from helpers.lessons import onnx_inference
from helpers.models import batching, inspection
from helpers.recipes.onnx_export import INPUTS, OLDER, OPSET, example_inputs, to_program

import numpy as np
import torch
from transformers import PreTrainedModel

SINGLE_FILE = 100_000_000  # bytes of weights from which they lie in a second, mapped file
# float32 keeps 7 digits; a sum over hundreds of terms, in another order, differs from the 5th on.
TOLERANCE = 1e-4


def export(model: PreTrainedModel, path: str | Path, inputs: Mapping | None = None) -> Path:
    """Write a model as an ONNX file whose batch and length are free; returns its path.

    It is run and compared before it is handed over: if OPSET's file fails, an older one is taken.

    Args:
        model: On any device; its modes and its attention implementation are as before afterwards.
        path: Of the .onnx file; large weights lie in a second file beside it.
        inputs: An example, by name: (batch >= 2, length >= 8). By default it is made up.

    Raises:
        TypeError: For a wrapper, whose `forward` has other inputs than the model inside.
        ValueError: For int8 weights, and for an example whose sizes would stay fixed or whose names
            are not the model's.
        RuntimeError: If no file computes what the model does.
    """
    _require_plain(model)
    path, attention = Path(path), model.config._attn_implementation
    example = inputs or example_inputs(model)
    takes, given = set(example_inputs(model)), set(example) - batching.EXTRAS
    if takes - given or given - set(INPUTS):
        raise ValueError(f"the model takes {sorted(takes)}, the example has {sorted(given)}")
    folder = tempfile.TemporaryDirectory(dir=path.parent)  # a failure leaves no half
    with folder, inspection.eval_mode(model), quiet(stdout=True):
        draft = Path(folder.name) / path.name
        try:
            for opset in (OPSET, OLDER):
                _write(to_program(model, example, opset=opset, optimize=False), draft, model)
                if not (fault := _fault(model, draft)):
                    break
            else:
                name = type(model).__name__
                raise RuntimeError(
                    f"no ONNX file computes what this {name} does: {fault!s:.200}"
                ) from fault
        finally:
            model.set_attn_implementation(attention)
        path.with_name(f"{path.name}.data").unlink(missing_ok=True)
        for file in sorted(draft.parent.iterdir(), reverse=True):
            file.replace(path.with_name(file.name))
    return path


def _fault(model: PreTrainedModel, path: Path) -> Exception | None:
    """Run a file with other shapes than the example's; return what is wrong with it."""
    try:
        found = parity(model, onnx_inference.session(path), batches=(1, 3), lengths=(5, 12))
    except Exception as error:  # ONNX Runtime's kinds have no common base
        return error
    rounding = 0.1 if model.dtype.itemsize < 4 else 10 * TOLERANCE
    if found.difference < rounding:
        return None
    return ArithmeticError(f"largest difference {found.difference:.1e}")


def _require_plain(model: PreTrainedModel) -> None:
    """Refuse what the exporter would write as something else."""
    if not isinstance(model, PreTrainedModel):
        name = type(model).__name__
        message = "model.merge_and_unload() for adapters, model._orig_mod for a compiled one"
        raise TypeError(f"{name} is not a model of transformers: take the one inside ({message})")
    for name, value in model.state_dict().items():
        if type(value) is not torch.Tensor:
            message = "is not a plain tensor, as in an int8 model: export the float model"
            raise ValueError(f"{name} {message}, and quantize the file")


def _write(program: torch.onnx.ONNXProgram, path: Path, model: PreTrainedModel) -> None:
    """Write a program's files; large weights into a second one."""
    program.optimize()
    limit = inspection.max_input_length(model)
    if limit < math.inf:
        program.model.metadata_props["max_length"] = str(limit)
    graph = program.model.graph
    names = ("logits", "last_hidden_state", "pooler_output")  # not what lies between the layers
    graph.outputs[:] = [value for value in graph.outputs if value.name.endswith(names)]
    for node in graph:
        node.metadata_props.clear()  # traces through the code, with this machine's paths
    weights = sum(value.const_value.nbytes for value in graph.initializers.values())
    path.with_name(f"{path.name}.data").unlink(missing_ok=True)
    program.save(path, external_data=weights > SINGLE_FILE)


class Parity(NamedTuple):
    """How far a session's outputs are from the model's."""

    difference: float  # the largest of all; NaN if one is
    agreement: float  # the smallest share of the same labels; NaN if it is no classifier

    @property
    def ok(self) -> bool:
        """Whether nothing differs by more than `TOLERANCE` and no label changes."""
        return self.difference <= TOLERANCE and not self.agreement < 1


def parity(
    model: PreTrainedModel,
    session,
    *,
    batches: Sequence[int] = (1, 2, 5),
    lengths: Sequence[int] = (1, 7, 512),
) -> Parity:
    """Compare all outputs of a session with those of its model, on padded pairs of texts.

    Padding and both segments matter: with ones everywhere, a file that takes the mask for the
    segment ids looks right. All batches are tried with all lengths (tokens) that the model reads,
    in eval mode.

    Raises:
        ValueError: For the file of another model.
    """
    rows, rng = [], np.random.default_rng(0)
    limit = inspection.max_input_length(model)
    for batch in batches:
        for length in sorted({min(length, limit) for length in lengths}):
            inputs = batching.two_segments(batch, length, model.config.vocab_size, rng)
            if getattr(model.config, "type_vocab_size", 2) < 2:
                inputs["token_type_ids"][:] = 0  # RoBERTa knows only one kind
            rows.append(_apart(model, session, inputs))
    differences, agreements = zip(*rows, strict=True)
    return Parity(float(np.max(differences)), float(np.min(agreements)))


def _apart(model: PreTrainedModel, session, inputs: dict) -> tuple[float, float]:
    """Return the largest difference of all outputs, and the share of the same labels."""
    accepted = inspection.accepted_inputs(model, inputs)
    tensors = {name: torch.from_numpy(array).to(model.device) for name, array in accepted.items()}
    with inspection.eval_mode(model), torch.no_grad():
        outputs = model(**tensors)
    found = session.run(None, onnx_inference.feed(session, accepted))
    ours = [outputs[name] for name in outputs if torch.is_tensor(outputs[name])]
    ours = [value.float().cpu().numpy() for value in ours[: len(found)]]
    if [one.shape for one in ours] != [other.shape for other in found]:
        raise ValueError("the file's outputs have other shapes: it was made of another model")
    real, worst = inputs["attention_mask"] == 1, []
    for one, other in zip(ours, found, strict=True):
        apart = np.abs(one - other)
        worst.append((apart[real] if apart.ndim == 3 else apart).max())  # padding: anything
    worst = float(np.max(worst))
    if ours[0].ndim != 2:
        return worst, float("nan")
    return worst, float((ours[0].argmax(-1) == found[0].argmax(-1)).mean())
