"""Cut a student out of a teacher and train it on what the teacher answers (notebook 06).

python distill.py TEACHER_FOLDER texts.tsv STUDENT_FOLDER
"""

import argparse
import copy
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn

LAYER = re.compile(r"(?<=\.layer\.|\blayers\.)\d+")  # ".layer.0." in most of the family
LOAD = transformers.AutoModelForSequenceClassification.from_pretrained
OPTIONS = {"epochs": 3, "lr": 2e-4, "temperature": math.inf, "label_weight": 0.0}


def soft_loss(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """Return T² x KL(teacher || student) of logits (texts, classes); see arXiv:1503.02531."""
    if temperature == float("inf"):  # limit: half the mean square of centred differences
        return (student - teacher).var(dim=-1, correction=0).mean() / 2
    log_p = nn.functional.log_softmax(teacher / temperature, dim=-1)
    log_q = nn.functional.log_softmax(student / temperature, dim=-1)
    kl = nn.functional.kl_div(log_q, log_p, reduction="batchmean", log_target=True)
    return temperature**2 * kl


def distillation_loss(student, teacher, labels, temperature=math.inf, label_weight=0.0) -> Tensor:
    """Mix the soft loss with cross-entropy for the labels (texts,), -100 where there is none."""
    if student.shape[-1] < 2:
        raise ValueError("a single logit has no distribution: its soft loss is always 0")
    own = nn.functional.cross_entropy(student, labels, reduction="sum")
    own = own / (labels != -100).sum().clamp(min=1)
    return (1 - label_weight) * soft_loss(student, teacher, temperature) + label_weight * own


def cut_student(teacher: nn.Module, layers: Sequence[int]) -> nn.Module:
    """Return a model made of some of a teacher's layers, with its embeddings and its head."""
    config, kept = copy.deepcopy(teacher.config), {}
    config.num_hidden_layers = len(layers)
    if getattr(config, "layer_types", None):  # ModernBERT's layers attend in different ways
        config.layer_types = [config.layer_types[layer] for layer in layers]
    for name, tensor in teacher.state_dict().items():
        found = LAYER.search(name)
        if not found:
            kept[name] = tensor
        for place, layer in enumerate(layers):
            if found and layer == int(found[0]):
                kept[LAYER.sub(str(place), name)] = tensor
    if not any(LAYER.search(name) for name in kept):
        raise ValueError("this teacher's layers share one set of weights: there is none to cut")
    student = type(teacher)(config).to(teacher.device)
    student.load_state_dict(kept)  # fails where a layer cannot stand in another's place
    return student


def logits(model: nn.Module, tokenizer, texts: Sequence[str]) -> Tensor:
    """Return a classifier's logits for texts, cut at 128 tokens."""
    cut = {"truncation": True, "max_length": 128, "return_tensors": "pt"}
    inputs = tokenizer(list(texts), padding=True, padding_side="right", **cut)
    return model(**inputs.to(model.device)).logits


def train(student, teacher, tokenizer, texts, labels=None, epochs=3, lr=2e-4, **mix) -> Iterator:
    """Train a student in place to answer as its teacher does, while the losses are iterated."""
    teacher.eval().requires_grad_(False)  # eval alone would keep the graph, and gradients
    labels = torch.tensor(labels or [-100] * len(texts))
    optimizer = torch.optim.AdamW(student.parameters(), lr=lr, weight_decay=0.01)
    steps = epochs * math.ceil(len(texts) / 32)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, int(0.06 * steps), steps)
    student.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(texts)).split(32):
            batch = [texts[row] for row in rows]
            own, target = (logits(model, tokenizer, batch) for model in (student, teacher))
            loss = distillation_loss(own, target, labels[rows].to(own.device), **mix)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(student.parameters(), 1.0, error_if_nonfinite=True)
            optimizer.step()
            schedule.step()
            yield loss.item()
    student.eval()


def main(argv: list[str] | None = None) -> None:
    """Distil a student of some layers, and say how often it answers as its teacher does."""
    given, settings = arguments(argv)
    lines = Path(given.table).read_text("utf-8-sig").split("\n")
    rows = [(*line.rsplit("\t", 1), -100) for line in lines if line.strip()]
    held_out = [row[0] for row in rows[::10]][:200]
    del rows[::10]
    texts, labels = [row[0] for row in rows], [int(row[1]) for row in rows]
    teacher, about = LOAD(given.teacher, output_loading_info=True)
    if missing := sorted(about["missing_keys"]):
        raise ValueError(f"{given.teacher} is not fine-tuned: {missing[0]} would be random")
    teacher.to(torch.accelerator.current_accelerator(check_available=True) or "cpu")
    tokenizer = transformers.AutoTokenizer.from_pretrained(given.teacher)
    depth = teacher.config.num_hidden_layers  # by default half, spread, with the first and the last
    spread = torch.linspace(0, depth - 1, max(2, depth // 2)).round().int().tolist()
    student = cut_student(teacher, given.layers or spread)
    for step, loss in enumerate(train(student, teacher, tokenizer, texts, labels, **settings)):
        if step % 50 == 0:
            print(f"step {step}: loss {loss:.4f}", flush=True)
    with torch.inference_mode():
        one, other = (logits(each, tokenizer, held_out).argmax(-1) for each in (teacher, student))
    print(f"held-out texts answered as by the teacher: {(one == other).float().mean():.1%}")
    student.save_pretrained(given.student)
    tokenizer.save_pretrained(given.student)


def arguments(argv: list[str] | None) -> tuple[argparse.Namespace, dict[str, float]]:
    """Read the command line; returns all of it, and the settings of the training again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("teacher", help="folder of a fine-tuned classifier")
    parser.add_argument("table", help="lines of text, tab, label's number (for --label_weight)")
    parser.add_argument("student", help="new folder to write")
    layers = {"type": lambda text: [int(number) for number in text.split(",")]}
    parser.add_argument("--layers", **layers, help="such as 0,2,5; default: half, with both ends")
    for name, value in OPTIONS.items():
        parser.add_argument(f"--{name}", type=type(value), default=value, help="(%(default)s)")
    given = parser.parse_args(argv)
    Path(given.student).mkdir(parents=True, exist_ok=True)  # an error now, not after the training
    Path(given.student).rmdir()  # an error if it holds anything
    return given, {name: vars(given)[name] for name in OPTIONS}


if __name__ == "__main__":
    main()
