"""Embed a folder of texts, on one device or many, and go on after an interruption (notebook 07).

    python embed_corpus.py TEXTS MODEL VECTORS_FOLDER
    accelerate launch --multi_gpu --num_processes 2 embed_corpus.py TEXTS MODEL VECTORS_FOLDER

TEXTS is a folder of .jsonl files, lines of {"text": ...}, or a .txt file with a text in each line.
Each becomes a .safetensors file with a row of "vectors" per text, which is cut at 512 tokens.
"""

import argparse
import hashlib
import json
from pathlib import Path

import safetensors
import safetensors.torch
import torch
import transformers
from accelerate import PartialState
from torch import nn


def mean_pool(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Average the hidden states (texts, tokens, width) of real tokens; float32 (texts, width)."""
    if hidden.shape[:2] != mask.shape:
        raise ValueError("the model computes its first token only; a mean needs all")
    weights = mask.unsqueeze(-1).float()  # without them, padding would count
    return (hidden.float() * weights).sum(1) / weights.sum(1)


def embed_sorted(texts: list[str], model, tokenizer, max_tokens=4096, limit=512) -> torch.Tensor:
    """Embed texts, cut at `limit` tokens, in batches of similar length; returns them in order."""
    encoded = tokenizer(texts, truncation=True, max_length=limit)["input_ids"] if texts else []
    order = sorted(range(len(encoded)), key=lambda row: len(encoded[row]))
    vectors = torch.empty(len(encoded), model.config.hidden_size)
    model.eval()  # no dropout
    while order:
        count = max(1, max_tokens // len(encoded[order[-1]]))  # padded to the longest of them
        rows = order[-count:]
        del order[-count:]
        batch = {"input_ids": [encoded[row] for row in rows]}
        batch = tokenizer.pad(batch, padding_side="right", return_tensors="pt").to(model.device)
        with torch.inference_mode():
            hidden = model(**batch).last_hidden_state
        vectors[rows] = mean_pool(hidden, batch["attention_mask"]).cpu()
    if not vectors.isfinite().all():
        raise ValueError("some vectors are not finite: broken weights, or too large for this dtype")
    return vectors


def read_texts(path: Path) -> list[str]:
    """Return the texts of a .jsonl or .txt file; an error names the line that holds none."""
    texts = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):  # no other line breaks
        if not line.strip():
            continue
        try:
            text = line.decode("utf-8-sig").strip()
            if path.suffix.lower() == ".jsonl":
                text = json.loads(text)["text"]
            text.encode()  # fails for null, and for half of a surrogate pair
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"line {number} of {path} holds no text: {error!r}") from error
        texts.append(text)
    return texts


def digest(model: nn.Module, tokenizer) -> str:
    """Return a digest of what a vector depends on beside its text: weights, settings, tokenizer."""
    tokenizer.backend_tokenizer.no_truncation()  # an earlier call may have set these two
    tokenizer.backend_tokenizer.no_padding()
    settings = model.config.to_json_string() + tokenizer.backend_tokenizer.to_str()
    total = hashlib.sha256(settings.encode())
    for name, tensor in model.state_dict().items():
        if "pooler" not in name:  # not used, and random where a checkpoint has none
            total.update(tensor.float().cpu().contiguous().numpy())
    return total.hexdigest()


def embed_folder(source: Path, target: Path, model: nn.Module, tokenizer) -> list[Path]:
    """Embed the files that have no vectors yet; returns those that this process wrote."""
    target.mkdir(parents=True, exist_ok=True)
    made_by, missing = digest(model, tokenizer), []
    paths = sorted(source.glob("*.jsonl")) if source.is_dir() else [source]
    if not paths or paths[0].suffix.lower() not in (".jsonl", ".txt"):
        raise FileNotFoundError(f"{source} is no .txt or .jsonl file, nor a folder of .jsonl files")
    for path in paths:
        about = {"made of": made_by + hashlib.sha256(path.read_bytes()).hexdigest()}
        vectors = target / f"{path.stem}.safetensors"
        if not vectors.exists():
            missing.append((path, vectors, about))
        elif safetensors.safe_open(vectors, "pt").metadata() != about:
            raise ValueError(f"{vectors} is of another model or text: choose another folder")
    state = PartialState(cpu=model.device.type == "cpu")
    state.wait_for_everyone()  # all have looked before one writes: they share the same list
    mine = missing[state.process_index :: state.num_processes]
    for path, vectors, about in mine:
        made = {"vectors": embed_sorted(read_texts(path), model, tokenizer)}
        part = vectors.with_suffix(".part")  # an interruption leaves no half of a file
        part.write_bytes(safetensors.torch.save(made, about))
        part.replace(vectors)
    return [vectors for _, vectors, _ in mine]


def main(argv: list[str] | None = None) -> None:
    """Embed all files of a folder; under `accelerate launch`, processes share them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="folder of .jsonl files, or one .txt file")
    parser.add_argument("model", help="a model folder, or a name on the Hugging Face hub")
    parser.add_argument("target", type=Path, help="folder for the vectors")
    families = {"choices": ["Auto", "Bert"], "default": "Auto"}
    parser.add_argument("--family", **families, help="Bert for SciBERT, whose files name none")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of each process")
    given = parser.parse_args(argv)
    torch.set_num_threads(given.threads)
    state = PartialState(cpu=not torch.accelerator.is_available())
    model_class = getattr(transformers, f"{given.family}Model")
    model = model_class.from_pretrained(given.model, dtype=getattr(torch, given.dtype))
    tokenizer = getattr(transformers, f"{given.family}Tokenizer").from_pretrained(given.model)
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # every word would be unknown
        raise ValueError(f"{given.model} holds no vocabulary: save its tokenizer there, too")
    made = embed_folder(given.source, given.target, model.to(state.device), tokenizer)
    me = f"process {state.process_index} of {state.num_processes} on {model.device}"
    print(f"{me} made {len(made)} files")
    state.destroy_process_group()


if __name__ == "__main__":
    main()
