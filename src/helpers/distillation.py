"""Knowledge distillation: its loss, a student cut from its teacher, and the training loop. Used by notebook 06.

Sources: Hinton, Vinyals and Dean, Distilling the Knowledge in a Neural Network, arXiv:1503.02531 (soft targets);
Sanh et al., DistilBERT, arXiv:1910.01108 (a student initialised from the teacher's layers).
"""

import copy
import hashlib
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from huggingface_hub.utils import are_progress_bars_disabled
from IPython.display import HTML, display
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional
from tqdm.auto import tqdm
from transformers import BertForSequenceClassification
from transformers.models.bert.modeling_bert import BertAttention, BertLayer

from . import batching, files, plots

UNLABELLED = -100  # the label that PyTorch's cross-entropy leaves out

# Batches are cut from this many batches' worth of shuffled texts, sorted by length: little padding, and still random.
_POOL = 32
KEEP_EVERY = 200  # steps after which a training keeps its state, if it was given a file for it


def distillation_loss(
    student: torch.Tensor,
    teacher: torch.Tensor,
    labels: torch.Tensor | None = None,
    *,
    temperature: float = 1.0,
    hard: float = 0.0,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """(1 - hard) x T² x KL(softmax(teacher / T) || softmax(student / T)) + hard x cross-entropy with the labels.

    Logits of shape (texts, classes), averaged over texts; or (texts, tokens, classes) with an attention ``mask`` of
    shape (texts, tokens), averaged over the real tokens. ``labels`` has the logits' shape less the classes; those of
    -100 have no hard part. ``temperature=math.inf`` is the limit: half the mean squared difference of the logits, less
    its mean over the classes (Hinton et al., section 2.1). The teacher gets no gradient. Raises ValueError for shapes
    that do not belong together, T <= 0, a share outside 0 to 1, missing labels or mask, a label that is no class, other
    numbers than 0 and 1 in the mask, logits that are not finite, and nothing to average.
    """
    rows = student.shape[:-1]
    if student.shape != teacher.shape or len(rows) not in (1, 2):
        raise ValueError(f"student {tuple(student.shape)}, teacher {tuple(teacher.shape)}: not two (texts, classes)")
    if not temperature > 0 or not 0 <= hard <= 1:
        raise ValueError(f"temperature has to be above 0 and hard between 0 and 1, not {temperature} and {hard}")
    if (hard and labels is None) or (labels is not None and labels.shape != rows):
        raise ValueError(f"hard={hard} goes with labels of shape {tuple(rows)}")
    if (mask is None) != (len(rows) == 1) or (mask is not None and mask.shape != rows):
        raise ValueError("logits of tokens need their attention mask (texts, tokens), logits of texts need none")
    if mask is not None:
        if not ((mask == 0) | (mask == 1)).all():
            raise ValueError("the mask has to be 1 for real tokens and 0 for padding, as tokenizers give it")
        real = mask.bool()
        student, teacher, labels = student[real], teacher[real], labels if labels is None else labels[real]
    if not len(student):
        raise ValueError("there is nothing to average: no text, or no real token")
    for who, logits in (("student", student), ("teacher", teacher)):
        if not logits.isfinite().all():
            raise ValueError(f"the {who}'s logits hold NaN or infinity")
    if hard:
        if labels.is_floating_point() or labels.dtype == torch.bool:
            raise ValueError(f"labels have to be whole numbers, not {labels.dtype}")
        labels = labels.long()
        wrong = labels[(labels != UNLABELLED) & ((labels < 0) | (labels >= student.shape[-1]))]
        if len(wrong):
            raise ValueError(f"there is a label {int(wrong[0])}; the classes are 0 to {student.shape[-1] - 1}")
    exact = torch.promote_types(student.dtype, torch.float32)
    student, teacher = student.to(exact), teacher.detach().to(exact)
    if temperature == math.inf:
        soft = (student - teacher).var(dim=-1, correction=0).mean() / 2
    else:
        # "batchmean" divides by the rows, as the formula says; the default, "mean", divides by the classes as well.
        logs = (functional.log_softmax(logits / temperature, dim=-1) for logits in (student, teacher))
        soft = temperature**2 * functional.kl_div(*logs, reduction="batchmean", log_target=True)
    known = labels != UNLABELLED if hard else torch.zeros(1)
    own = functional.cross_entropy(student[known], labels[known]) if known.any() else 0.0
    return (1 - hard) * soft + hard * own


def make_student(teacher: nn.Module, layers: Sequence[int] | None, **config) -> tuple[nn.Module, dict[str, str]]:
    """A smaller model of the teacher's class, in eval mode, and what was copied: name in it -> name in the teacher.

    ``layers`` are the teacher's layers that become the student's 0, 1, ...; embeddings and head are copied as well, and
    every copy is compared. A smaller ``intermediate_size`` keeps the neurons with the largest weights (norm of those in
    times norm of those out). ``layers=None`` copies nothing: random weights, the same each time, and ``config`` may
    change any size. Raises ValueError for layers that the teacher lacks and for sizes that would leave no copy.
    """
    settings, depth = copy.deepcopy(teacher.config), teacher.config.num_hidden_layers
    if layers is not None:
        if not layers or not all(0 <= layer < depth for layer in layers):
            raise ValueError(f"layers {list(layers)}: give one or more of the teacher's layers, 0 to {depth - 1}")
        missing = [layer for layer in layers if not any(f".layer.{layer}." in name for name in teacher.state_dict())]
        if missing:
            raise ValueError(f"{type(teacher).__name__} names no tensor .layer.{missing[0]}.: its layers cannot be cut")
        narrow = config.get("intermediate_size")
        if set(config) - {"intermediate_size"} or (narrow is not None and not 0 < narrow <= settings.intermediate_size):
            raise ValueError(f"copied layers can get a smaller intermediate_size only, not {config}; or layers=None")
        config |= {"num_hidden_layers": len(layers)}
    settings.update(config)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = type(teacher)(settings).to(teacher.device, teacher.dtype).eval()
    old, copied = teacher.state_dict(), {}
    for name, tensor in ({} if layers is None else model.state_dict()).items():
        source = re.sub(r"(?<=\.layer\.)\d+(?=\.)", lambda number: str(layers[int(number[0])]), name)
        value = old[source]
        for axis in [axis for axis, size in enumerate(tensor.shape) if size != value.shape[axis]]:
            layer = re.match(r".*\.layer\.\d+\.", source)[0]
            into, out = old[f"{layer}intermediate.dense.weight"], old[f"{layer}output.dense.weight"]
            strongest = (into.norm(dim=1) * out.norm(dim=0)).topk(settings.intermediate_size).indices
            value = value.index_select(axis, strongest.sort().values)
        tensor.copy_(value)
        copied[name] = source
        assert torch.equal(model.state_dict()[name], value), name
    return model, copied


class FirstTokenLayer(BertLayer):
    """BERT's layer computed for the first token only, which attends to all; weights and their names are the same."""

    def __init__(self, config, layer_idx: int | None = None):
        super().__init__(config, layer_idx)
        # transformers' attention from one sequence to another: here from the first token to all tokens.
        self.attention = BertAttention(config, layer_idx=layer_idx, is_cross_attention=True)

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, *_, **__):
        """Hidden states (texts, tokens, width) to (texts, 1, width)."""
        mask = attention_mask if attention_mask is None else attention_mask[..., :1, :]
        first = hidden_states[:, :1]
        attended, _ = self.attention(first, encoder_hidden_states=hidden_states, encoder_attention_mask=mask)
        return self.feed_forward_chunk(attended)


def read_first_token(model: BertForSequenceClassification) -> BertForSequenceClassification:
    """Let the last layer compute only the token that the classifier reads: the same logits for less work. In place.

    Raises TypeError for a model that may read the other tokens.
    """
    if not isinstance(model, BertForSequenceClassification):
        raise TypeError(f"{type(model).__name__} may read all tokens; this is for BertForSequenceClassification")
    layers = model.base_model.encoder.layer
    layer = FirstTokenLayer(model.config, len(layers) - 1).to(model.device, model.dtype)
    layer.load_state_dict(layers[-1].state_dict())
    for new, old in zip(layer.parameters(), layers[-1].parameters(), strict=True):
        new.requires_grad_(old.requires_grad)
    layers[-1] = layer.train(model.training)
    return model


def accepted_inputs(model: nn.Module, encoding: Mapping) -> dict:
    """The entries of an encoding that the model's ``forward`` names: DistilBERT, for one, knows no segment ids."""
    inner = getattr(model, "_orig_mod", model)  # torch.compile's wrapper
    inner = inner.get_base_model() if hasattr(inner, "get_base_model") else inner  # peft's
    names = inspect.signature(inner.forward).parameters
    return {name: value for name, value in encoding.items() if name in names}


def _encode(tokenizer, texts: Sequence, max_length: int) -> tuple[dict[str, list], list[int]]:
    """What the tokenizer gives for texts or pairs of texts, without padding, and the number of tokens of each."""
    if isinstance(texts, str):
        raise TypeError("texts is one text: give a list, [text]")
    if not len(texts):
        raise ValueError("there are no texts")
    pairs = [(text,) if isinstance(text, str) else text for text in texts]
    encoded = dict(tokenizer(*map(list, zip(*pairs, strict=True)), truncation=True, max_length=max_length))
    return encoded, [len(ids) for ids in encoded["input_ids"]]


def _batch(model: nn.Module, tokenizer, encoded: dict[str, list], rows: Sequence[int]) -> dict[str, torch.Tensor]:
    """Some rows of an encoding, padded to the longest, as inputs on the model's device."""
    picked = {name: [column[row] for row in rows] for name, column in encoded.items()}
    return accepted_inputs(model, tokenizer.pad(picked, return_tensors="pt").to(next(model.parameters()).device))


def predict(model: nn.Module, tokenizer, texts: Sequence, max_tokens: int = 1024) -> torch.Tensor:
    """A classifier's logits in eval mode without gradients, float32 (texts, labels) on the CPU, in the given order.

    Texts (or pairs) are sorted by length into batches of at most ``max_tokens`` tokens with padding, cut at 128 tokens.
    """
    encoded, lengths = _encode(tokenizer, texts, 128)
    groups, results = batching.batches(lengths, max_tokens=max_tokens), []
    before = {module: module.training for module in model.modules()}
    try:
        model.eval()
        with torch.inference_mode():
            for group in groups:
                results.append(model(**_batch(model, tokenizer, encoded, group)).logits.float().cpu())
    finally:
        for module, training in before.items():
            module.training = training
    return torch.stack(batching.restore(results, groups))


def teacher_logits(teacher: nn.Module, tokenizer, ids: Sequence, texts: Sequence, file: Path | None = None):
    """A teacher's logits (examples, labels) in the order of ``ids``; with ``file``, kept there by example id.

    What the file has is not computed again, unless the example's text has changed, or the teacher: up to eight examples
    show that, and a file that has none of them is begun anew. Raises ValueError unless each text has an id of its own.
    """
    keys, texts = [str(key) for key in ids], list(texts)
    if len(set(keys)) != len(keys) or len(keys) != len(texts):
        raise ValueError(f"{len(texts)} texts, {len(set(keys))} different ids: each text needs an id of its own")
    digests = (hashlib.sha256(f"{key}\n{text}".encode()).digest() for key, text in zip(keys, texts, strict=True))
    marks = [int.from_bytes(digest[:8], "big", signed=True) for digest in digests]
    saved = load_file(file) if file and file.exists() else {}
    known = dict(zip(saved["marks"].tolist(), saved["logits"], strict=True)) if saved else {}
    kept = [row for row, mark in enumerate(marks) if mark in known]
    probe = [kept[number * len(kept) // 8] for number in range(8)] if len(kept) > 8 else kept
    then = torch.stack([known[marks[row]] for row in probe]) if probe else None
    now = predict(teacher, tokenizer, [texts[row] for row in probe]) if probe else None
    if then is None or now.shape != then.shape or not torch.allclose(now, then, atol=1e-3):
        known = {}
    if new := [row for row, mark in enumerate(marks) if mark not in known]:
        logits = predict(teacher, tokenizer, [texts[row] for row in new])
        known |= zip([marks[row] for row in new], logits, strict=True)
        if file:
            tensors = {"marks": torch.tensor(list(known)), "logits": torch.stack(list(known.values()))}
            with files.whole(file) as part:
                save_file(tensors, part)
    return torch.stack([known[mark] for mark in marks])


def check_pair(teacher: nn.Module, student: nn.Module, tokenizer, student_tokenizer=None) -> None:
    """Raise ValueError unless both read the same token ids, number their labels alike, and share no memory."""
    other, probe = student_tokenizer or tokenizer, "Naïve CAFÉ, 2nd try: don't."
    if apart := set(tokenizer.get_vocab().items()) ^ set(other.get_vocab().items()):
        raise ValueError(f"the vocabularies differ, for instance in {min(apart)}: the same ids mean other words")
    if tokenizer(probe)["input_ids"] != other(probe)["input_ids"]:
        raise ValueError("the vocabularies are the same, the tokenizers are not: compare their lower-casing")
    sizes = [len(model.get_input_embeddings().weight) for model in (teacher, student)]
    if student_tokenizer is None and sizes[0] != sizes[1]:
        raise ValueError(
            f"the teacher has {sizes[0]} word vectors, the student {sizes[1]}: give the student's tokenizer"
        )
    if min(sizes) < len(tokenizer):
        raise ValueError(
            f"the tokenizer has {len(tokenizer)} tokens, one of the models has embeddings for {min(sizes)}"
        )
    orders = [[str(name).lower() for _, name in sorted(model.config.id2label.items())] for model in (teacher, student)]
    if orders[0] != orders[1]:
        raise ValueError(f"the labels are {orders[0]} in the teacher and {orders[1]} in the student: set id2label")
    held = {parameter.untyped_storage().data_ptr() for parameter in teacher.parameters()}
    for name, parameter in student.named_parameters():
        if parameter.untyped_storage().data_ptr() in held:
            raise ValueError(f"{name} is the teacher's own tensor: training the student would change the teacher")


def distill(student, teacher, tokenizer, examples, *, temperature=math.inf, hard=0.0, file=None, **training):
    """Train a student to match its teacher, in place; returns the loss of every step.

    ``examples`` is a table with the columns id, text and, if ``hard`` > 0, label (-100 for none). ``temperature`` and
    ``hard`` are those of :func:`distillation_loss` (``hard=1`` is plain fine-tuning), ``file`` keeps the teacher's
    logits, ``training`` goes to :func:`train`. The teacher is in eval mode and wants no gradient from then on. Raises
    ValueError, before anything is trained, if :func:`check_pair` does.
    """
    check_pair(teacher, student, tokenizer)
    teacher.eval().requires_grad_(False)
    texts = examples["text"].tolist()
    labels = torch.tensor(examples["label"].tolist()) if hard else torch.full((len(texts),), UNLABELLED)
    zeros = torch.zeros(len(texts), student.config.num_labels)
    distillation_loss(zeros, zeros, labels, temperature=temperature, hard=hard)  # complains before minutes have passed
    targets = teacher_logits(teacher, tokenizer, examples["id"].tolist(), texts, file)
    goal = (temperature, hard, labels.tolist(), targets.round(decimals=2).tolist())

    def loss(logits, rows):
        wanted = (tensor[rows].to(logits.device) for tensor in (targets, labels))
        return distillation_loss(logits, *wanted, temperature=temperature, hard=hard)

    return train(student, tokenizer, texts, loss, goal=goal, **training)


class LiveCurve:
    """Curves of trainings, redrawn while they run (not where progress bars are off)."""

    def __init__(self, ylabel: str, every: int = 20):
        self.ylabel, self.every, self.curves = ylabel, every, {}
        self.live = None if are_progress_bars_disabled() else display(display_id=True)

    def follow(self, name: str, measure: Callable[[], float] | None = None) -> Callable[[int, float], None]:
        """An ``after_step`` for :func:`train`: every few steps it notes ``measure()``, or their mean loss."""
        steps, values, losses = self.curves.setdefault(name, ([], [], []))

        def after_step(step: int, loss: float) -> None:
            losses.append(loss)
            if step % self.every == 0:
                steps.append(step)
                recent = losses[-self.every :]
                values.append(measure() if measure else sum(recent) / len(recent))
                if self.live:
                    self.show(f"{self.ylabel}: {name} {values[-1]:.3g}", last=False)

        return after_step

    def show(self, alt: str, last: bool = True) -> None:
        """Show all curves with ``alt``: for good, or in place of the live picture."""
        fig, axes = plots.plt.subplots()
        for name, (steps, values, _) in self.curves.items():
            axes.plot(steps, values, marker="o", label=name)
        axes.set(xlabel="training step", ylabel=self.ylabel)
        axes.legend()
        if self.live:
            self.live.update(HTML("" if last else plots.html(fig, alt)))
        if last:
            plots.show(fig, alt)


def train(
    model: nn.Module,
    tokenizer,
    texts: Sequence,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    *,
    epochs: int = 1,
    lr: float = 2e-4,
    batch_size: int = 32,
    max_length: int = 128,
    seed: int = 0,
    after_step: Callable[[int, float], None] | None = None,
    checkpoint: Path | None = None,
    goal: object = None,
    quiet: bool | None = None,
) -> list[float]:
    """Train a classifier's trainable parameters with AdamW, warm-up over 6 % of the steps and a linear decay.

    ``loss(logits, rows)`` gets logits of shape (batch, labels) and the positions of their texts in ``texts``, shape
    (batch,), so that targets kept by row always belong to the batch, however it was shuffled. ``after_step`` gets the
    step's number and its loss. Every `KEEP_EVERY` steps all state goes to ``checkpoint``, from which an interrupted
    training of the same model goes on (on a CPU exactly); ValueError if another training left it there, one with other
    settings, texts, first weights or another ``goal``, which stands for what the loss compares with. Raises
    FloatingPointError if the loss is not finite. The progress bar is silent under HF_HUB_DISABLE_PROGRESS_BARS.
    Returns the loss of every step and leaves the model in eval mode.
    """
    encoded, lengths = _encode(tokenizer, texts, max_length)
    shuffled = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)  # dropout
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=lr, weight_decay=0.01)
    batches = [rows for _ in range(epochs) for rows in _shuffled_batches(lengths, batch_size, shuffled)]
    steps = len(batches)
    warmup = max(1, round(0.06 * steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, (steps - step) / max(1, steps - warmup))
    )
    history: list[float] = []
    plan = hashlib.sha256(repr((goal, epochs, lr, batch_size, seed, encoded)).encode())
    for name, parameter in model.named_parameters() if checkpoint else ():
        plan.update(f"{name} {parameter.requires_grad} {float(parameter.detach().double().sum()):.6g}".encode())
    plan = plan.hexdigest()
    if checkpoint and checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True, map_location="cpu")
        if saved["plan"] != plan:
            raise ValueError(f"{checkpoint} was left by another training: repeat its settings, or remove the file")
        with torch.no_grad():
            for parameter, value in zip(trained, saved["trained"], strict=True):
                parameter.copy_(value)
        optimizer.load_state_dict(saved["optimizer"])
        schedule.load_state_dict(saved["schedule"])
        torch.set_rng_state(saved["dropout"])
        history = saved["history"]
    model.train()
    quiet = are_progress_bars_disabled() if quiet is None else quiet
    with tqdm(total=steps, initial=len(history), disable=quiet, desc="training", unit="step", leave=False) as bar:
        for rows in batches[len(history) :]:
            value = loss(model(**_batch(model, tokenizer, encoded, rows)).logits, torch.tensor(rows))
            if not value.isfinite():
                raise FloatingPointError(f"the loss of step {len(history) + 1} is {float(value.detach())}")
            optimizer.zero_grad()
            value.backward()
            nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            schedule.step()
            history.append(float(value.detach()))
            bar.update()
            if after_step:
                after_step(len(history), history[-1])
            if checkpoint and (len(history) % KEEP_EVERY == 0 or len(history) == steps):
                state = {"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict(), "history": history}
                state |= {"trained": [parameter.detach() for parameter in trained]}
                with files.whole(checkpoint) as part:
                    torch.save(state | {"dropout": torch.get_rng_state(), "plan": plan}, part)
    model.eval()
    return history


def _shuffled_batches(lengths: list[int], batch_size: int, generator: torch.Generator) -> list[list[int]]:
    """All rows once, in random order, in batches of texts of about the same length."""
    order = torch.randperm(len(lengths), generator=generator).tolist()
    pools = [order[start : start + _POOL * batch_size] for start in range(0, len(order), _POOL * batch_size)]
    groups = []
    for pool in pools:
        pool.sort(key=lengths.__getitem__)
        groups += [pool[start : start + batch_size] for start in range(0, len(pool), batch_size)]
    return [groups[i] for i in torch.randperm(len(groups), generator=generator).tolist()]
