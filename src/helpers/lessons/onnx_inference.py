"""Open an ONNX file with ONNX Runtime, feed it, run it: without torch (notebooks 04, 05 and 08)."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from helpers.core import machine
from helpers.core.quiet import quiet
from helpers.models import batching

import numpy as np
import onnxruntime

_DTYPES = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}


class ProviderError(RuntimeError):
    """ONNX Runtime would compute somewhere else than asked; the message says where."""


class Feed(dict):
    """Arrays by name, ready for `InferenceSession.run`.

    Attributes:
        dropped: Names that were given and that the file does not take.
        added: Names that `feed` filled in.
    """

    dropped: tuple[str, ...] = ()
    added: tuple[str, ...] = ()


def session(
    path: str | Path,
    *,
    threads: int | None = None,
    spinning: bool = False,
    providers: str | Sequence = "CPUExecutionProvider",
    optimized: str | Path | None = None,
) -> onnxruntime.InferenceSession:
    """Open an ONNX file so that it computes where it was asked to.

    Args:
        path: The file, or what `onnx_export.export` returned.
        threads: By default the usable CPUs; ONNX Runtime looks past a container's limit.
        spinning: Keep threads busy while they wait: they start sooner, and all else in this
            process gets slow, PyTorch included.
        providers: One, or several in order of preference.
        optimized: Where to write the graph as ONNX Runtime rewrites it, for looking at.

    Raises:
        FileNotFoundError: If the second file, with the weights, is not beside the first.
        ProviderError: If a provider is not in use at the end.
    """
    path = Path(getattr(path, "path", path))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or machine.usable_cpus()
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
    options.log_severity_level = 3  # errors are raised as well; warnings would be on stderr
    if optimized:
        options.optimized_model_filepath = str(optimized)
    providers = [providers] if isinstance(providers, str) else list(providers)
    with quiet(stdout=True):  # a missing provider is an error below
        try:
            opened = onnxruntime.InferenceSession(str(path), options, providers=providers)
        except Exception as error:
            if "xternal data" not in str(error):
                raise
            raise FileNotFoundError(
                f"the weights of {path.name} lie in a second file that is not beside it, or not "
                "complete: a model of several files moves as one (Exported.files lists them)"
            ) from error
    for provider in providers:
        _require_provider(opened, provider if isinstance(provider, str) else provider[0])
    return opened


def _require_provider(opened: onnxruntime.InferenceSession, name: str) -> None:
    if name in opened.get_providers():
        return
    built = onnxruntime.get_available_providers()
    cause = f"this build has only {', '.join(built)}"
    if name in built:
        cause = "its libraries do not start here"
    raise ProviderError(
        f"{name} was asked for and is not in use ({cause}): ONNX Runtime would compute with "
        f"{', '.join(opened.get_providers())}. Install the package with that provider (for CUDA "
        "onnxruntime-gpu, without onnxruntime beside it), or ask for CPUExecutionProvider"
    )


def feed(session: onnxruntime.InferenceSession, inputs: Mapping) -> Feed:
    """Return what a session's `run` takes, from lists, arrays or tensors by name.

    Integers become those that the file declares. Names that it does not know are dropped; segment
    ids that it wants and nobody gave are zeros.

    Raises:
        TypeError: For numbers that are not integers.
        ValueError: For a missing input, padding where the file takes no mask, negative numbers
            (another row of a table), and shapes that differ (they would be broadcast).
    """
    declared = {entry.name: entry for entry in session.get_inputs()}
    made = Feed()
    made.dropped = tuple(name for name in inputs if name not in declared)
    if "attention_mask" in made.dropped and not np.asarray(inputs["attention_mask"]).all():
        raise ValueError("the file has no attention_mask and would read the padding as text")
    for name in declared:
        if name not in inputs:
            continue
        value = inputs[name]
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        if array.dtype.kind not in "iub":
            raise TypeError(
                f"{name} holds {array.dtype}; the file takes integers, as tokenizers give"
            )
        if array.ndim != 2 or not array.size:
            raise ValueError(f"{name} has shape {array.shape}, not (texts, tokens): give a batch")
        dtype = _DTYPES[declared[name].type]
        for value in (array.min(), array.max()):
            if not 0 <= value <= np.iinfo(dtype).max:
                raise ValueError(f"{name} holds {value}, which would be another row of the table")
        made[name] = np.ascontiguousarray(array, dtype=dtype)
    if "token_type_ids" in declared and "token_type_ids" not in made and "input_ids" in made:
        made["token_type_ids"] = np.zeros_like(made["input_ids"])
        made.added = ("token_type_ids",)
    if missing := [name for name in declared if name not in made]:
        raise ValueError(f"the file needs {missing[0]}, which is not among {list(inputs)}")
    shapes = {name: array.shape for name, array in made.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"shapes differ: {shapes}")
    return made


def run(session: onnxruntime.InferenceSession, inputs: Mapping) -> np.ndarray:
    """Return the first output: logits (texts, labels) or hidden states, float32."""
    return session.run([session.get_outputs()[0].name], feed(session, inputs))[0]


def predict(
    session: onnxruntime.InferenceSession,
    tokenizer,
    texts: Sequence,
    max_tokens: int = 1024,
    workers: int = 1,
) -> np.ndarray:
    """Return a classifier's logits, float32 (texts, labels), in the given order.

    Args:
        session: Of `session`; with one thread for each of several workers.
        tokenizer: Cuts texts (or pairs) at 128 tokens.
        texts: Sorted by length into batches.
        max_tokens: Of a batch, with padding.
        workers: Batches that are computed at the same time.

    Raises:
        ValueError: For a file that does not classify whole texts.
    """
    output = session.get_outputs()[0]
    if len(output.shape) != 2:
        raise ValueError(f"{output.name} has shape {output.shape}: predict classifies whole texts")
    encoded, lengths = batching.encode(tokenizer, texts)
    groups = batching.batches(lengths, max_tokens=max_tokens)

    def answer(rows: list[int]) -> np.ndarray:
        return run(session, batching.pad(tokenizer, encoded, rows, "np"))

    with ThreadPoolExecutor(workers) as pool:
        results = list(pool.map(answer, groups))
    return np.stack(batching.restore(results, groups))
