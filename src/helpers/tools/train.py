"""Long trainings that make the weights of the notebooks: `train-teacher` and `train-student`."""

import datetime
import json
import time
from pathlib import Path

from helpers.core import files, machine, metrics
from helpers.lessons import distillation, sentiment, training
from helpers.models import assets, catalogue, datasets

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from torch.nn import functional

# Mean ratings by 20 people (-4 to 4) say how sure they were: 0.5 becomes P(positive) = 0.65, 3
# becomes 0.97.
RATING_SCALE = 1.2

# How students learn, and the rank to which what they learned is cut down: chosen without looking at
# test snippets.
TRAINING = {"label_weight": 0.3, "epochs": 3, "lr": 2e-4}
RANK, WORD_RANK = 32, 16
CARD = files.DATA / "templates" / "model_card.md"


def rating_targets(ratings):
    """Return soft targets (texts, 2), negative first: P(positive) = sigmoid(1.2 x rating)."""
    positive = torch.sigmoid(RATING_SCALE * torch.tensor(list(ratings), dtype=torch.float32))
    return torch.stack([1 - positive, positive], dim=1)


def train_teacher(folder: Path = sentiment.ADAPTER, epochs: int = 4) -> metrics.Accuracy:
    """Train the sentiment adapter, store it in float16 with its card; return its test accuracy."""
    rows, test = sentiment.sentences("train"), sentiment.sentences("test")
    options, rank = {"seed": 0, "epochs": epochs, "lr": 1e-3}, 32
    torch.manual_seed(options["seed"])
    lora = {"r": rank, "lora_alpha": rank, "target_modules": "all-linear"}
    lora = LoraConfig(**lora, modules_to_save=["classifier"])
    model = get_peft_model(sentiment.untrained(), lora)
    targets = rating_targets(rows["rating"])

    def loss(logits, picked):
        return functional.cross_entropy(logits, targets[picked])

    training.train(model, assets.tokenizer("minilm"), rows["text"], loss, **options)
    minilm, settings = catalogue.CATALOGUE["minilm"], model.peft_config["default"]
    # An adapter for MiniLM on the hub, and not for the folder in which it lies here.
    settings.base_model_name_or_path, settings.revision = minilm.hub_id, minilm.revision
    model.half().save_pretrained(folder, save_embedding_layers=False)
    logits = sentiment.logits(sentiment.teacher(folder), test["text"])
    accuracy = metrics.accuracy(test["label"], logits.argmax(dim=1))
    origin = assets.provenance(datasets.reviews())
    card = CARD.read_text(encoding="utf-8").format(
        hub_id=minilm.hub_id,
        revision=minilm.revision,
        n=len(rows),
        source=origin.source,
        digest=origin.digest,
        scale=RATING_SCALE,
        rank=rank,
        **options,
        accuracy=accuracy,
        machine=machine.describe_machine(),
        date=datetime.date.today().isoformat(),
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
    return accuracy


def train_student(name: str, folder: Path = sentiment.STUDENTS, examples=None) -> dict:
    """Distil one of `sentiment.LAYERS` and store it in `folder`/`name`; return its record.

    All parameters learn to give the teacher's logits for `examples` (default: `transfer_texts`),
    and the labels where there are some.
    """
    test, start = sentiment.sentences("test"), time.process_time()
    examples = sentiment.transfer_texts() if examples is None else examples
    (folder / name).mkdir(parents=True, exist_ok=True)
    model = sentiment.unfinished_student(name)
    before = {key: parameter.detach().clone() for key, parameter in model.named_parameters()}
    file = folder / sentiment.TEACHER_LOGITS.name
    teacher, tokenizer = sentiment.teacher(), assets.tokenizer("minilm")
    distillation.distill(model, teacher, tokenizer, examples, file=file, **TRAINING)
    _store_change(before, model, folder / name / "change.safetensors")
    answers = sentiment.logits(sentiment.student(name, folder), test["text"]).argmax(dim=1)
    record = TRAINING | {
        "layers": str(sentiment.LAYERS[name]),
        "texts": len(examples),
        "accuracy": str(metrics.accuracy(test["label"], answers)),
        "CPU minutes of the last run": round((time.process_time() - start) / 60, 1),
        "command": f"python -m helpers train-student {name}",
        "machine": machine.describe_machine(),
        "date": datetime.date.today().isoformat(),
    }
    with files.atomic_write(folder / name / "record.json") as part:
        part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return record


def _store_change(before: dict, model, file: Path) -> None:
    """Write what training changed in float16, matrices as products of two thin ones.

    The product is the nearest of its rank (Eckart and Young, Psychometrika 1, 1936, 211-218).
    """
    change = {}
    for key, parameter in model.named_parameters():
        difference = parameter.detach() - before[key]
        if difference.dim() < 2:
            change[key] = difference.half()
            continue
        rank = min(WORD_RANK if "word_embeddings" in key else RANK, *difference.shape)
        # The right singular vectors are the eigenvectors of D'D, which is small even for the table
        # of word vectors.
        right = torch.linalg.eigh(difference.T @ difference).eigenvectors[:, -rank:]
        change[f"{key}.left"] = (difference @ right).half()
        change[f"{key}.right"] = right.T.contiguous().half()
    with files.atomic_write(file) as part:
        save_file(change, part, {"teacher": sentiment.adapter_digest()})
