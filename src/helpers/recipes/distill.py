"""Cut a student out of a teacher and train it on what the teacher thinks (notebook 06).

python distill.py TEACHER_FOLDER texts.tsv STUDENT_FOLDER --layers 0,2,5
"""

import argparse
import copy
import csv
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel


def soft_loss(
    student: torch.Tensor, teacher: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """Return T² x KL(teacher || student) of logits (texts, classes), averaged over the texts.

    "batchmean" divides by the texts; "mean" would divide by the classes as well. The factor T²
    keeps the gradient's size comparable (Hinton et al., arXiv:1503.02531). An infinite temperature
    stands for the limit, half the squared difference of the centred logits.
    """
    if math.isinf(temperature):
        return (student - teacher).var(dim=-1, correction=0).mean() / 2
    log_p = functional.log_softmax(teacher / temperature, dim=-1)
    log_q = functional.log_softmax(student / temperature, dim=-1)
    return temperature**2 * functional.kl_div(log_q, log_p, reduction="batchmean", log_target=True)


def cut_student(teacher: PreTrainedModel, layers: Sequence[int]) -> PreTrainedModel:
    """Return a model made of some of a teacher's layers, with its embeddings and its head."""
    config = copy.deepcopy(teacher.config)
    config.num_hidden_layers = len(layers)
    student, weights = type(teacher)(config), teacher.state_dict()
    for name, tensor in student.state_dict().items():
        place = re.search(r"(?<=\.layer\.)\d+", name)
        if place:
            name = f"{name[: place.start()]}{layers[int(place[0])]}{name[place.end() :]}"
        tensor.copy_(weights[name])
    return student


def batches(texts: Sequence[str], size: int, seed: int) -> Iterator[list[str]]:
    """Yield the texts in random order, in batches."""
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(seed)).tolist()
    for start in range(0, len(order), size):
        yield [texts[row] for row in order[start : start + size]]


def logits(model: nn.Module, tokenizer, texts: Sequence[str]) -> torch.Tensor:
    """Return a classifier's logits for texts, cut at 128 tokens."""
    inputs = tokenizer(list(texts), padding=True, truncation=True, max_length=128)
    inputs = inputs.convert_to_tensors("pt").to(model.device)
    return model(**inputs).logits


def train(student, teacher, tokenizer, texts, epochs=3, lr=2e-4, temperature=math.inf, size=32):
    """Train the student in place to give the teacher's logits; yield the loss of each step.

    The teacher answers in eval mode and without gradients; the optimizer knows the student's
    parameters only.
    """
    teacher.eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters(), lr=lr, weight_decay=0.01)
    steps = epochs * math.ceil(len(texts) / size)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    student.train()
    for epoch in range(epochs):
        for batch in batches(texts, size, seed=epoch):
            with torch.no_grad():
                target = logits(teacher, tokenizer, batch)
            loss = soft_loss(logits(student, tokenizer, batch), target, temperature)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(student.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            yield loss.item()
    student.eval()


def main(argv: list[str] | None = None) -> None:
    """Distil a student of some layers, and say how often it answers as its teacher does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("teacher", help="folder of a fine-tuned classifier")
    parser.add_argument("table", help="tab-separated, texts in the first column")
    parser.add_argument("student", help="folder to write")
    parser.add_argument("--layers", default="0,2,5", help="of the teacher (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=3)
    given = parser.parse_args(argv)
    with Path(given.table).open(encoding="utf-8", newline="") as file:
        texts = [row[0] for row in csv.reader(file, delimiter="\t")]
    held_out, texts = texts[::10], [text for row, text in enumerate(texts) if row % 10]
    teacher = AutoModelForSequenceClassification.from_pretrained(given.teacher)
    tokenizer = AutoTokenizer.from_pretrained(given.teacher)
    student = cut_student(teacher, [int(layer) for layer in given.layers.split(",")])
    for step, loss in enumerate(train(student, teacher, tokenizer, texts, given.epochs), 1):
        if step % 50 == 1:
            print(f"step {step}: loss {loss:.4f}", flush=True)
    with torch.inference_mode():
        one, other = (logits(model, tokenizer, held_out) for model in (teacher, student))
    same = (one.argmax(-1) == other.argmax(-1)).float().mean()
    print(f"same answer as the teacher on {same:.1%} of {len(held_out)} held-out texts")
    for part in (student, tokenizer):
        part.save_pretrained(given.student)


if __name__ == "__main__":
    main()
