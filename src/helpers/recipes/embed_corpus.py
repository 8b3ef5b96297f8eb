"""Embed a folder of texts, on one device or many, and go on after an interruption (notebook 07).

    python embed_corpus.py TEXTS_FOLDER MODEL VECTORS_FOLDER
    accelerate launch --num_processes 2 embed_corpus.py TEXTS_FOLDER MODEL VECTORS_FOLDER

The folder holds .jsonl files of {"text": ...} lines. Each becomes a .safetensors file of vectors.
"""

import argparse
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from accelerate import PartialState
from torch import nn
from transformers import AutoModel, AutoTokenizer


def mean_pool(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Average the hidden states (texts, tokens, width) of the real tokens; float32 (texts, width).

    Without the mask, padding would count, and a vector would depend on its batch.
    """
    weights = mask.unsqueeze(-1).float()
    return (hidden.float() * weights).sum(1) / weights.sum(1).clamp(min=1)


def embed_sorted(
    texts: Sequence[str], model: nn.Module, tokenizer, max_tokens: int = 4096, limit: int = 512
) -> torch.Tensor:
    """Embed texts in batches of like length; returns float32 (texts, width) in the given order.

    Args:
        texts: Cut at `limit` tokens.
        model: An encoder in eval mode.
        tokenizer: Its tokenizer.
        max_tokens: Of a batch, padding included.
        limit: The longest input of the model.
    """
    encoded = tokenizer(list(texts), truncation=True, max_length=limit)["input_ids"]
    order = sorted(range(len(encoded)), key=lambda row: len(encoded[row]))
    vectors = torch.empty(len(encoded), model.config.hidden_size)
    while order:
        longest = len(encoded[order[-1]])
        count = max(1, max_tokens // longest)
        rows, order = order[-count:], order[:-count]
        batch = tokenizer.pad({"input_ids": [encoded[row] for row in rows]}, return_tensors="pt")
        batch = batch.to(model.device)
        with torch.inference_mode():
            hidden = model(**batch).last_hidden_state
        vectors[rows] = mean_pool(hidden, batch["attention_mask"]).cpu()
    return vectors


def fingerprint(model: nn.Module, path: Path) -> str:
    """Return a digest of a model's weights and of a file of texts: what its vectors depend on."""
    total = hashlib.sha256(path.read_bytes())
    for name, tensor in sorted(model.state_dict().items()):
        total.update(name.encode())
        total.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()


def finished(path: Path, expected: str) -> bool:
    """Whether a file of vectors is there, complete, and of this model and these texts."""
    if not path.exists():
        return False
    with safetensors.safe_open(path, "pt") as file:
        found = (file.metadata() or {}).get("fingerprint")
    if found != expected:
        raise ValueError(f"{path} is of another model or other texts: choose another folder")
    return True


def embed_file(source: Path, target: Path, model: nn.Module, tokenizer) -> None:
    """Write the vectors of a file of texts in one step: an interruption leaves no half of one."""
    expected = fingerprint(model, source)
    if finished(target, expected):
        return
    lines = source.read_bytes().split(b"\n")  # not splitlines(): a text may hold other breaks
    texts = [json.loads(line)["text"] for line in lines if line.strip()]
    vectors = embed_sorted(texts, model, tokenizer)
    part = target.with_suffix(".part")
    safetensors.torch.save_file({"vectors": vectors}, part, {"fingerprint": expected})
    part.replace(target)


def main(argv: list[str] | None = None) -> None:
    """Embed all files of a folder; under `accelerate launch`, processes share them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="folder of .jsonl files")
    parser.add_argument("model", help="a model folder, or a name on the Hugging Face hub")
    parser.add_argument("target", type=Path, help="folder for the vectors")
    given = parser.parse_args(argv)
    state = PartialState(cpu=not torch.cuda.is_available())
    model = AutoModel.from_pretrained(given.model, dtype=torch.float32).eval().to(state.device)
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    given.target.mkdir(parents=True, exist_ok=True)
    files = sorted(given.source.glob("*.jsonl"))
    for path in files[state.process_index :: state.num_processes]:
        embed_file(path, given.target / f"{path.stem}.safetensors", model, tokenizer)
        print(f"process {state.process_index}: {path.name}", flush=True)
    state.destroy_process_group()


if __name__ == "__main__":
    main()
