"""Embed a folder of texts, on one device or many; restartable."""

import argparse
import datetime
import hashlib
import json
import sys
from dataclasses import asdict, fields
from pathlib import Path

from helpers.core import files, machine
from helpers.lessons.embedding import Embedded, EmbeddingReport, check_casing, embed
from helpers.models import assets, catalogue

import numpy as np
import pandas as pd
import safetensors.numpy
import torch
from torch import nn


def _shards(source, target) -> dict[Path, Path]:
    """The files of texts in their order, and for each the file of its vectors, whether it is there or not."""
    if paths := sorted(Path(source).glob("*.jsonl")):
        return {path: Path(target) / f"{path.stem}.safetensors" for path in paths}
    raise ValueError(
        f'{source} holds no .jsonl files: write {{"text": "..."}} in each line, 1,000 lines or so in a file'
    )


def _texts(path: Path) -> list[str]:
    """The texts of a shard; ValueError for a line that holds none."""
    texts = []
    for number, line in enumerate(
        path.read_bytes().split(b"\n"), 1
    ):  # not splitlines(): a text may hold other breaks
        try:
            if line.strip():
                texts.append(json.loads(line.decode("utf-8-sig"))["text"])
                texts[-1].encode()  # fails for what is no text, and for half a character
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            wrong = f"line {number} of {path} is no {{'text': '...'}} in UTF-8 but {line[:60]!r}"
            raise ValueError(f"{wrong} ({error}): mend it and start again") from None
    return texts


def _read(path: Path) -> tuple[dict, np.ndarray] | None:
    """What a file of vectors says about itself, and the vectors.

    None if it is missing or incomplete.
    """
    try:
        with safetensors.safe_open(path, "numpy") as file:
            if about := (file.metadata() or {}).get("embedding"):
                return json.loads(about), file.get_tensor("vectors")
    except (OSError, safetensors.SafetensorError):
        return None
    raise ValueError(
        f"{path} holds something else than vectors of texts, and is not written over: choose another target"
    )


def _finished(path: Path, job: dict) -> bool:
    """Whether a shard is there, whole, and of this job."""
    shard = _read(path)
    if shard and (
        different := [name for name, value in job.items() if shard[0]["job"].get(name) != value]
    ):
        raise ValueError(
            f"{path} is of another job ({', '.join(different)}): choose another target, or delete it"
        )
    return shard is not None


def embed_shards(
    source, target, model: nn.Module, tokenizer, *, threads: int = 1, **options
) -> list[Path]:
    """Embed every shard of a folder into a file of vectors.

    Returns the files that this process made.

    Under `accelerate launch` the processes of all hosts share the work, through folders that all of
    them reach. One process computes a shard, with `threads` CPU threads whatever their number, and
    writes it whole or not at all: each file has the same bytes for any number, and a restart does
    what is missing. ValueError for a line without a text, and if the target holds shards of another
    model, text, version or hardware, or made with other options (those of `stream`), or files that
    are no shards.
    """
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list

    device = next(model.parameters()).device
    state = PartialState(cpu=device.type == "cpu", timeout=datetime.timedelta(days=7))
    Path(target).mkdir(parents=True, exist_ok=True)
    weights = hashlib.sha256(model.config.to_json_string().encode())
    for tensor in model.state_dict().values():
        weights.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    settings = json.loads(tokenizer.backend_tokenizer.to_str()) | {
        "truncation": None,
        "padding": None,
    }
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else machine.cpu_name()
    job = {
        "model": weights.hexdigest(),
        "tokenizer": hashlib.sha256(json.dumps(settings).encode()).hexdigest(),
    }
    job |= {"options": options, "threads": threads, "torch": torch.__version__, "hardware": card}
    shards = _shards(source, target)
    jobs = {path: job | {"texts": files.sha256(path)} for path in shards}
    # One process looks what is there: each by itself would see the others' new shards and divide
    # another list.
    plan = (
        [[p for p, target in shards.items() if not _finished(target, jobs[p])]]
        if state.is_main_process
        else [[]]
    )
    todo = broadcast_object_list(plan)[0]
    mine = todo[state.process_index :: state.num_processes]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for path in mine:
            done = embed(_texts(path), model, tokenizer, progress=False, **options)
            about = json.dumps({"job": jobs[path], "report": asdict(done.report)})
            with files.atomic_write(shards[path]) as part:
                part.write_bytes(
                    safetensors.numpy.save({"vectors": done.vectors}, {"embedding": about})
                )
    finally:
        torch.set_num_threads(before)
    state.wait_for_everyone()
    return [shards[path] for path in mine]


def collect(source, target) -> Embedded:
    """All vectors of a finished job, in the order of its shards.

    ValueError if shards are missing or of older texts.
    """
    shards = _shards(source, target)
    found = {path.name: _read(path) for path in shards.values()}
    if missing := [name for name, shard in found.items() if shard is None]:
        raise ValueError(
            f"{len(missing)} of {len(found)} shards are missing, first {missing[0]}: start the job again"
        )
    for texts, path in shards.items():
        if found[path.name][0]["job"]["texts"] != files.sha256(texts):
            raise ValueError(
                f"{texts} was changed after {path.name} was made: delete that and start the job again"
            )
    reports = pd.DataFrame([about["report"] for about, _ in found.values()])
    total = {
        f.name: reports[f.name][0] if f.type is str else int(reports[f.name].sum())
        for f in fields(EmbeddingReport)
    }
    return Embedded(
        np.concatenate([vectors for _, vectors in found.values()]), EmbeddingReport(**total)
    )


def main(argv: list[str] | None = None) -> int:
    """`python -m helpers.tools.embed_corpus`, alone or under `accelerate launch`.

    Returns the exit status.
    """
    parser = argparse.ArgumentParser(
        prog="python -m helpers.tools.embed_corpus", description=__doc__
    )
    parser.add_argument("source", help="folder of *.jsonl files with a {'text': ...} in every line")
    parser.add_argument("target", help="folder for the vectors, which all processes reach")
    parser.add_argument(
        "--model",
        default="scibert",
        help="a name from the catalogue, or a folder (default: scibert)",
    )
    parser.add_argument(
        "--long", default="truncate", choices=["truncate", "window"], help="texts beyond the limit"
    )
    parser.add_argument(
        "--threads", type=int, default=1, help="CPU threads of each process (default: 1)"
    )
    given = parser.parse_args(argv)
    from accelerate import PartialState
    from transformers import AutoModel, AutoTokenizer

    state = PartialState(cpu=not torch.cuda.is_available(), timeout=datetime.timedelta(days=7))
    load = assets.model, assets.tokenizer
    if given.model not in catalogue.CATALOGUE:
        load = AutoModel.from_pretrained, AutoTokenizer.from_pretrained
    model, tokenizer = (one(given.model) for one in load)
    check_casing(tokenizer)
    if state.is_main_process:
        print(getattr(model, "provenance", given.model))  # the vectors of a stand-in mean nothing
    model = model.to(state.device, torch.float32)
    made = embed_shards(
        given.source, given.target, model, tokenizer, threads=given.threads, long=given.long
    )
    print(
        f"process {state.process_index} of {state.num_processes} made {len(made)} shards",
        flush=True,
    )
    if state.is_main_process:
        print(collect(given.source, given.target).report)
    state.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
