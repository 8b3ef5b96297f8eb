"""Open an ONNX file with ONNX Runtime, feed it, run it: without torch (notebooks 04, 05 and 08)."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from helpers.core import machine
from helpers.core.quiet import quiet
from helpers.lessons.device_errors import known
from helpers.models import batching
from helpers.recipes.fast_pipeline import open_session

import numpy as np
import onnxruntime

onnxruntime.set_default_logger_severity(3)  # errors are raised as well; warnings would be on stderr


def session(
    path: str | Path, *, threads: int | None = None, provider: str = "CPUExecutionProvider"
) -> onnxruntime.InferenceSession:
    """Open an ONNX file on the provider that is asked for; its threads sleep while they wait.

    By default it has as many threads as CPUs are usable: ONNX Runtime looks past a container's
    limit. Raises RuntimeError if the provider is not in use, or the file cannot be used here.
    """
    try:
        with quiet(stdout=True):  # a missing provider is an error, and needs no remark
            return open_session(path, threads or machine.usable_cpus(), provider)
    except Exception as error:  # ONNX Runtime's kinds have no common base
        if said := known(str(error)):
            raise RuntimeError(f"{Path(path).name}: {said}") from error
        raise


def feed(session: onnxruntime.InferenceSession, inputs: Mapping) -> dict[str, np.ndarray]:
    """Return what a session's `run` takes, from lists, arrays or tensors by name.

    What a tokenizer adds and the file does not know is dropped (with a warning if it tells the two
    texts of a pair apart); segment ids that nobody gave are zeros.

    Raises:
        TypeError: For numbers that are not integers.
        ValueError: For a missing input or an unknown one, padding where the file takes no mask,
            negative numbers, shapes that differ (they would be broadcast), and more tokens than the
            model reads, if `onnx_export.export` wrote the file.
    """
    names = [entry.name for entry in session.get_inputs()]
    dropped = batching.EXTRAS | {"attention_mask", "token_type_ids"}
    if strange := set(inputs) - dropped - set(names):
        raise ValueError(f"the file takes {', '.join(names)}, but not {', '.join(sorted(strange))}")
    made = {}
    for entry in session.get_inputs():
        if entry.name in inputs:
            array = np.asarray(inputs[entry.name])
            if array.dtype.kind not in "iub":
                raise TypeError(f"{entry.name} holds {array.dtype}; the file takes integers")
            if array.min(initial=0) < 0:
                raise ValueError(f"{entry.name} holds {array.min()}: a row from the table's end")
            made[entry.name] = array.astype(np.int32 if "int32" in entry.type else np.int64)
        elif entry.name == "token_type_ids":
            made[entry.name] = np.zeros(np.shape(inputs["input_ids"]), np.int64)
        else:
            raise ValueError(f"the file needs {entry.name}, which is not among {list(inputs)}")
    if "attention_mask" not in made and not np.all(inputs.get("attention_mask", 1)):
        raise ValueError("the file has no attention_mask and would read the padding as text")
    if "token_type_ids" not in made and np.any(np.asarray(inputs.get("token_type_ids", 0))):
        message = "the file has no token_type_ids: both texts of a pair count as the first"
        warnings.warn(f"{message} (right for DistilBERT, wrong for a BERT)", stacklevel=2)
    limit = session.get_modelmeta().custom_metadata_map.get("max_length", "")
    limit = int(limit) if limit.isdigit() else 10**9
    longest = max((array.shape[-1] for array in made.values() if array.ndim), default=0)
    if longest > limit:
        raise ValueError(f"{longest} tokens, but the model reads {limit}: cut with max_length")
    shapes = {name: array.shape for name, array in made.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"shapes differ: {shapes}")
    return made


def run(session: onnxruntime.InferenceSession, inputs: Mapping) -> np.ndarray:
    """Return the first output: logits (texts, labels) or hidden states, float32."""
    return session.run([session.get_outputs()[0].name], feed(session, inputs))[0]


def predict(
    session: onnxruntime.InferenceSession, tokenizer, texts: Sequence, max_tokens: int = 1024
) -> np.ndarray:
    """Return a classifier's logits, float32 (texts, labels), in the given order.

    Args:
        session: Of `session`.
        tokenizer: Cuts texts (or pairs) at 128 tokens.
        texts: Sorted by length into batches.
        max_tokens: Of a batch, with padding.

    Raises:
        ValueError: For a file that does not classify whole texts.
    """
    output = session.get_outputs()[0]
    if len(output.shape) != 2:
        raise ValueError(f"{output.name} has shape {output.shape}: predict classifies whole texts")
    encoded, lengths = batching.encode(tokenizer, texts)
    if full := sum(length == batching.MAX_LENGTH for length in lengths):
        warnings.warn(f"{full} texts fill {batching.MAX_LENGTH} tokens: cut there", stacklevel=2)
    groups = batching.batches(lengths, max_tokens)
    padded = (batching.pad(tokenizer, encoded, rows, "np") for rows in groups)
    results = [run(session, batch) for batch in padded]
    return np.stack(batching.restore(results, groups))
