"""Open an ONNX file, feed it, run it."""

import contextlib
import io
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from helpers.core import machine
from helpers.models import batching

import numpy as np

_TYPES = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}


class ProviderError(RuntimeError):
    """ONNX Runtime would compute somewhere else than asked.

    The message says where, and what is missing.
    """


class Feed(dict):
    """Arrays by name, ready for `InferenceSession.run`.

    dropped: names that were given and that the file does not take; added: names that `feed` filled
    in
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
):
    """Opens an ONNX file as an `onnxruntime.InferenceSession` that computes where it was asked to.

    threads: as many as there are usable CPUs by default (ONNX Runtime's own default looks past a container's limit)
    spinning: whether its threads keep a CPU busy while they wait: they start sooner, and all else in this process gets
        slow, PyTorch included
    providers: one name, or several in order of preference, as ONNX Runtime takes them
    optimized: a path to write the graph to as ONNX Runtime has rewritten it, for looking at

    Raises FileNotFoundError if the file or its data is not there, ValueError if it is no ONNX file
    or holds numbers that cannot be computed with, ProviderError if a provider is not in use at the
    end.
    """
    import onnxruntime

    path = Path(getattr(path, "path", path))
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path.name} in {path.parent.absolute()}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or machine.usable_cpus()
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
    options.log_severity_level = (
        3  # its errors are raised as well; its warnings would come out on stderr
    )
    if optimized:
        options.optimized_model_filepath = str(optimized)
    providers = [providers] if isinstance(providers, str) else list(providers)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter(
            "ignore"
        )  # of a provider that is missing (some is printed): that is an error here
        try:
            opened = onnxruntime.InferenceSession(str(path), options, providers=providers)
        except Exception as error:
            if "xternal data" in str(error):
                raise FileNotFoundError(
                    f"the weights of {path.name} lie in a second file that is not beside it, or not whole: a model of "
                    "several files moves as one (Exported.files lists them)"
                ) from error
            if "rotobuf" in str(error):
                raise ValueError(
                    f"{path.name} is no ONNX file, or not whole: export or copy it again"
                ) from error
            if "NOT_IMPLEMENTED" in str(error):
                raise ValueError(
                    f"ONNX Runtime cannot compute with the numbers in {path.name} here, as with bfloat16 on a CPU: "
                    "export model.float()"
                ) from error
            raise
    wanted = [provider if isinstance(provider, str) else provider[0] for provider in providers]
    if missing := [name for name in wanted if name not in opened.get_providers()]:
        built = onnxruntime.get_available_providers()
        cause = (
            "its libraries do not start here"
            if missing[0] in built
            else f"this build has only {', '.join(built)}"
        )
        raise ProviderError(
            f"{missing[0]} was asked for and is not in use ({cause}): ONNX Runtime would compute with "
            f"{', '.join(opened.get_providers())}. Install the package with that provider (for CUDA onnxruntime-gpu, "
            "without onnxruntime beside it), or ask for CPUExecutionProvider"
        )
    return opened


def feed(session, inputs: Mapping) -> Feed:
    """What a session's `run` takes, made from a BatchEncoding or a mapping of lists, arrays or tensors.

    Numbers become the whole numbers that the file declares (int64 or int32). Names that it does not
    know are dropped; segment ids that it wants and nobody gave are zeros: one segment. Everything
    else raises: TypeError for numbers that are not whole, ValueError for a missing or an empty
    input, for padding and a file without a mask, for numbers that are negative or too large, for
    rows of different lengths, a wrong rank, a wrong fixed size.
    """
    declared = {entry.name: entry for entry in session.get_inputs()}
    made = Feed()
    made.dropped = tuple(name for name in inputs if name not in declared)
    if "attention_mask" in made.dropped and not np.asarray(inputs["attention_mask"]).all():
        raise ValueError(
            "the file has no attention_mask, so it would read the padding as text: export it with a mask"
        )
    for name in (name for name in declared if name in inputs):
        value = inputs[name]
        try:
            array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        except ValueError as error:  # NumPy's for ragged rows
            raise ValueError(
                f"the rows of {name} differ in length: pad them (tokenizer(..., padding=True))"
            ) from error
        if not array.size:
            raise ValueError(
                f"{name} has shape {array.shape}, so there is nothing to compute: give at least one text"
            )
        if array.dtype.kind not in "iub":
            raise TypeError(
                f"{name} holds {array.dtype} numbers; this file takes whole numbers, as tokenizers give them"
            )
        kind = _TYPES[declared[name].type]
        for value in (array.min(), array.max()):
            if not 0 <= value <= np.iinfo(kind).max:
                raise ValueError(
                    f"{name} holds {value}: ONNX Runtime would take it for another row of the table"
                )
        made[name] = np.ascontiguousarray(array, dtype=kind)
    if "token_type_ids" in declared and "token_type_ids" not in made and "input_ids" in made:
        made["token_type_ids"] = np.zeros_like(
            made["input_ids"], dtype=_TYPES[declared["token_type_ids"].type]
        )
        made.added = ("token_type_ids",)
    if missing := [name for name in declared if name not in made]:
        raise ValueError(f"the file needs {missing[0]}, which is not among {list(inputs)}")
    for name, array in made.items():
        if array.ndim != len(declared[name].shape):
            raise ValueError(
                f"{name} has {array.ndim} axes, the file takes {len(declared[name].shape)}: (texts, tokens). One text "
                "is a batch, too: tokenizer([text], ...)"
            )
        fixed = [size if isinstance(size, int) else None for size in declared[name].shape]
        if any(size not in (None, got) for size, got in zip(fixed, array.shape, strict=True)):
            raise ValueError(
                f"{name} has shape {array.shape}; the file was exported for {declared[name].shape} only"
            )
        if array.shape != next(iter(made.values())).shape:
            raise ValueError(
                f"shapes differ: {', '.join(f'{n} {a.shape}' for n, a in made.items())}"
            )
    return made


def run(session, inputs: Mapping) -> np.ndarray:
    """The first output for inputs of any kind that `feed` takes, float32.

    Logits (texts, labels) or hidden states.
    """
    return session.run([session.get_outputs()[0].name], feed(session, inputs))[0]


def predict(
    session, tokenizer, texts: Sequence, max_tokens: int = 1024, workers: int = 1
) -> np.ndarray:
    """A classifier's logits, float32 (texts, labels), in the given order.

    Texts (or pairs) are sorted by length into batches of at most `max_tokens` tokens with padding,
    cut at 128 tokens. `workers` batches are computed at the same time: with sessions of one thread,
    a CPU each. Raises what `batching.encode` raises, and ValueError for a file of another kind.
    """
    output = session.get_outputs()[0]
    if len(output.shape) != 2:
        raise ValueError(
            f"{output.name} has the shape {output.shape} here: predict is for classifiers of whole texts"
        )
    encoded, lengths = batching.encode(tokenizer, texts)
    groups = batching.batches(lengths, max_tokens=max_tokens)
    with ThreadPoolExecutor(workers) as pool:
        results = list(
            pool.map(
                lambda rows: run(session, batching.pad(tokenizer, encoded, rows, "np")), groups
            )
        )
    return np.stack(batching.restore(results, groups))
