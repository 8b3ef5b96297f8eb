"""Knowledge distillation: its loss, a student cut from its teacher, and the training loop. Used by notebook 06.

Sources: Hinton, Vinyals and Dean, Distilling the Knowledge in a Neural Network, arXiv:1503.02531 (soft targets);
Sanh et al., DistilBERT, arXiv:1910.01108 (a student initialised from the teacher's layers).
"""

import copy
import hashlib
import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from helpers.core import files
from helpers.models import batching, inspection
from helpers.models.inspection import _logits, predict, unwrap

import torch
from huggingface_hub.utils import are_progress_bars_disabled
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional
from tqdm.auto import tqdm
from transformers import BertForSequenceClassification, PreTrainedModel
from transformers.models.bert.modeling_bert import BertAttention, BertLayer

UNLABELLED = -100  # the label that PyTorch's cross-entropy leaves out

# Batches are cut from this many batches' worth of shuffled texts, sorted by length: little padding, and still random.
_POOL = 32
KEEP_EVERY = 200  # steps after which a training keeps its state, if it was given a file for it
_SAVED = {
    "_name_or_path",
    "architectures",
    "dtype",
    "transformers_version",
}  # of a config: saving the model sets these


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
    that do not belong together, one class, T <= 0, a share outside 0 to 1, missing labels or mask, a label that is no
    class, other numbers than 0 and 1 in the mask, logits that are not finite or overflow, and nothing to average.
    """
    student = torch.as_tensor(student)
    teacher = torch.as_tensor(teacher, device=student.device)
    mask = None if mask is None else torch.as_tensor(mask, device=student.device)
    try:
        labels = None if labels is None else torch.as_tensor(labels, device=student.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"labels have to be whole numbers, {UNLABELLED} for none ({error})"
        ) from error
    rows = student.shape[:-1]
    if student.shape != teacher.shape or len(rows) not in (1, 2):
        raise ValueError(
            f"student {tuple(student.shape)}, teacher {tuple(teacher.shape)}: not two (texts, classes)"
        )
    if student.shape[-1] < 2:
        raise ValueError(
            "softmax over one class is always 1, so nothing is learned: for a score use the squared error"
        )
    if not temperature > 0 or not 0 <= hard <= 1:
        raise ValueError(
            f"temperature has to be above 0 and hard between 0 and 1, not {temperature} and {hard}"
        )
    if (hard and labels is None) or (labels is not None and labels.shape != rows):
        raise ValueError(f"hard={hard} goes with labels of shape {tuple(rows)}")
    if (mask is None) != (len(rows) == 1) or (mask is not None and mask.shape != rows):
        raise ValueError(
            "logits of tokens need their attention mask (texts, tokens), logits of texts need none"
        )
    if mask is not None:
        if not ((mask == 0) | (mask == 1)).all():
            raise ValueError(
                "the mask has to be 1 for real tokens and 0 for padding, as tokenizers give it"
            )
        real = mask.bool()
        student, teacher, labels = (
            student[real],
            teacher[real],
            labels if labels is None else labels[real],
        )
    if not len(student):
        raise ValueError("there is nothing to average: no text, or no real token")
    for who, logits in (("student", student), ("teacher", teacher)):
        if not logits.isfinite().all():
            raise ValueError(f"the {who}'s logits hold NaN or infinity")
    if hard:
        if labels.is_floating_point() or labels.dtype == torch.bool:
            raise ValueError(
                f"labels have to be whole numbers, {UNLABELLED} for none, not {labels.dtype}"
            )
        labels = labels.long()
        wrong = labels[(labels != UNLABELLED) & ((labels < 0) | (labels >= student.shape[-1]))]
        if len(wrong):
            raise ValueError(
                f"there is a label {int(wrong[0])}; the classes are 0 to {student.shape[-1] - 1}"
            )
    exact = torch.promote_types(student.dtype, torch.float32)
    student, teacher = student.to(exact), teacher.detach().to(exact)
    # Two flat distributions differ by about 1/T, and their divergence is the square of that: float32 would lose it from
    # T = 1000 on, and float64 (which MPS has not) from 1e5. The limit is 1/T away. At 1e4 all but 3 to 4 digits agree.
    if temperature > 1e4:
        soft = (student - teacher).var(dim=-1, correction=0).mean() / 2
    else:
        wide = [
            (logits.cpu() if logits.is_mps else logits).double() for logits in (student, teacher)
        ]
        # "batchmean" divides by the rows, as the formula says; the default, "mean", divides by the classes as well.
        logs = (functional.log_softmax(logits / temperature, dim=-1) for logits in wide)
        soft = temperature**2 * functional.kl_div(*logs, reduction="batchmean", log_target=True)
        soft = soft.to(exact).to(student.device)
    known = labels != UNLABELLED if hard else torch.zeros(1)
    own = functional.cross_entropy(student[known], labels[known]) if known.any() else 0.0
    loss = (1 - hard) * soft + hard * own
    if not loss.isfinite():
        raise ValueError(
            f"the logits are too large for the temperature {temperature}: the loss is {float(loss)}"
        )
    return loss


def make_student(
    teacher: nn.Module, layers: Sequence[int] | None, **config
) -> tuple[nn.Module, dict[str, str]]:
    """A smaller model of the teacher's class, in eval mode, and what was copied: name in it -> name in the teacher.

    ``layers`` are the teacher's layers that become the student's 0, 1, ...; embeddings and head are copied as well, and
    every copy is compared. A smaller ``intermediate_size`` keeps the neurons with the largest weights (norm of those in
    times norm of those out). ``layers=None`` copies nothing: random weights, the same each time, and ``config`` may
    change any size. Raises TypeError for layers that are no whole numbers and for what is no model of transformers, and
    ValueError for layers and settings that the teacher lacks, for sizes that would leave no copy, and for tensors that
    cannot be copied (int8, or of several dtypes).
    """
    if not isinstance(teacher, PreTrainedModel):
        raise TypeError(
            f"{type(teacher).__name__} is no model of transformers: give the model that is inside"
        )
    settings, depth = copy.deepcopy(teacher.config), teacher.config.num_hidden_layers
    if unknown := [name for name in config if not hasattr(settings, name)]:
        raise ValueError(f"{type(settings).__name__} has no setting {unknown[0]}")
    if layers is not None:
        try:
            layers = [operator.index(layer) for layer in layers]
        except TypeError as error:
            raise TypeError(f"layers has to be a list of whole numbers, not {layers!r}") from error
        if not layers or not all(0 <= layer < depth for layer in layers):
            raise ValueError(
                f"layers {layers}: give one or more of the teacher's layers, 0 to {depth - 1}"
            )
        missing = [
            layer
            for layer in layers
            if not any(f".layer.{layer}." in name for name in teacher.state_dict())
        ]
        if missing:
            raise ValueError(
                f"{type(teacher).__name__} names no tensor .layer.{missing[0]}.: its layers cannot be cut"
            )
        narrow = config.get("intermediate_size")
        if set(config) - {"intermediate_size"} or (
            narrow is not None and not 0 < narrow <= settings.intermediate_size
        ):
            raise ValueError(
                f"copied layers can get a smaller intermediate_size only, not {config}; or layers=None"
            )
        config |= {"num_hidden_layers": len(layers)}
    settings.update(config)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = type(teacher)(settings).to(teacher.device, teacher.dtype).eval()
    old, copied = teacher.state_dict(), {}
    for name, tensor in ({} if layers is None else model.state_dict()).items():
        source = re.sub(
            r"(?<=\.layer\.)\d+(?=\.)", lambda number: str(layers[int(number[0])]), name
        )
        value = old.get(source)
        if type(value) is not torch.Tensor or value.dtype != tensor.dtype:
            raise ValueError(
                f"the teacher has no {source} of {tensor.dtype}: give a whole float model of one dtype"
            )
        for axis in [axis for axis, size in enumerate(tensor.shape) if size != value.shape[axis]]:
            layer = re.match(r".*\.layer\.\d+\.", source)[0]
            into, out = old[f"{layer}intermediate.dense.weight"], old[f"{layer}output.dense.weight"]
            strongest = (
                (into.norm(dim=1) * out.norm(dim=0)).topk(settings.intermediate_size).indices
            )
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

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, *_, **__
    ):
        """Hidden states (texts, tokens, width) to (texts, 1, width)."""
        mask = attention_mask if attention_mask is None else attention_mask[..., :1, :]
        first = hidden_states[:, :1]
        attended, _ = self.attention(
            first, encoder_hidden_states=hidden_states, encoder_attention_mask=mask
        )
        return self.feed_forward_chunk(attended)


def read_first_token(model: BertForSequenceClassification) -> BertForSequenceClassification:
    """Let the last layer compute only the token that the classifier reads: the same logits for less work. In place.

    Raises TypeError for a model that may read the other tokens, and for one whose last layer holds other weights.
    """
    if type(model) is not BertForSequenceClassification or model.config.is_decoder:
        name = type(model).__name__
        raise TypeError(
            f"this {name} may read all tokens: take a BertForSequenceClassification, float and no decoder"
        )
    layers = model.base_model.encoder.layer
    layer = FirstTokenLayer(model.config, len(layers) - 1).to(model.device, model.dtype)
    try:
        layer.load_state_dict(layers[-1].state_dict())
    except RuntimeError as error:
        raise TypeError(
            "the last layer holds adapters or int8 weights: merge them, or quantize afterwards"
        ) from error
    for new, old in zip(layer.parameters(), layers[-1].parameters(), strict=True):
        new.requires_grad_(old.requires_grad)
    layers[-1] = layer.train(model.training)
    return model


def _read(file: Path, read: Callable) -> object:
    """What ``read`` makes of a file. Raises ValueError for a file that is damaged or holds other things."""
    try:
        return read(file)
    except Exception as error:
        raise ValueError(
            f"{file} is damaged, or was not written here: remove it ({error!r})"
        ) from error


def teacher_logits(
    teacher: nn.Module, tokenizer, ids: Sequence, texts: Iterable, file: str | Path | None = None
):
    """A teacher's logits (examples, labels) in the order of ``ids``; with ``file``, kept there by example id.

    What the file has is not computed again, unless the example's text has changed, or the teacher: up to eight examples
    show that, and a file that has none of them is begun anew. A teacher that differs on other examples only goes
    unnoticed: give it a file of its own. Raises ValueError unless each text has an id of its own, and for a file that
    is damaged or holds other things.
    """
    keys, texts = (
        [str(key).replace("\n", "\\n") for key in ids],
        list(texts),
    )  # the line break ends the key below
    if not keys or len(set(keys)) != len(keys) or len(keys) != len(texts):
        raise ValueError(
            f"{len(texts)} texts, {len(set(keys))} different ids: each text needs an id of its own"
        )
    pairs = zip(keys, texts, strict=True)
    digests = (
        hashlib.sha256(f"{key}\n{text}".encode(errors="surrogatepass")).digest()
        for key, text in pairs
    )
    marks = [int.from_bytes(digest[:8], "big", signed=True) for digest in digests]
    if file:
        file = Path(file)
        file.parent.mkdir(parents=True, exist_ok=True)
    known = _read(file, _marked) if file and file.exists() else {}
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
            tensors = {
                "marks": torch.tensor(list(known)),
                "logits": torch.stack(list(known.values())),
            }
            with files.atomic_write(file) as part:
                save_file(tensors, part)
    return torch.stack([known[mark] for mark in marks])


def _marked(file: Path) -> dict[int, torch.Tensor]:
    """The kept logits by the mark of their example."""
    saved = load_file(file)
    return dict(zip(saved["marks"].tolist(), saved["logits"].float(), strict=True))


def check_pair(teacher: nn.Module, student: nn.Module, tokenizer, student_tokenizer=None) -> None:
    """Raise ValueError unless both read the same token ids, and as many of a text, and have the same labels.

    These have to exclude each other. It is an error as well if the models share memory.
    """
    other = student_tokenizer or tokenizer
    if apart := set(tokenizer.get_vocab().items()) ^ set(other.get_vocab().items()):
        raise ValueError(
            f"the vocabularies differ, for instance in {min(apart)}: the same ids mean other words"
        )
    # Up to 1,000 words that the vocabulary knows, in forms that show whether letters, accents and signs are changed.
    words = sorted(tokenizer.get_vocab())
    words = words[:: 1 + len(words) // 1000]
    probes = [
        "Naïve CAFÉ, 2nd try: don't.",
        *(f"{word} {word.title()} {word}\u0301 {word}{word}" for word in words),
    ]
    one, two = (
        batching.encode(read, zip(probes, probes[::-1], strict=True))[0]
        for read in (tokenizer, other)
    )
    if any(one[name] != two[name] for name in one.keys() & two.keys()):
        raise ValueError(
            "the vocabularies are the same, the tokenizers are not: compare their lower-casing, accents, special tokens"
        )
    reads = [
        min(batching.MAX_LENGTH, inspection.max_input_length(model)) for model in (teacher, student)
    ]
    if reads[0] != reads[1]:
        raise ValueError(
            f"the teacher reads {reads[0]} tokens of a text, the student {reads[1]}: give both as many positions"
        )
    sizes = [len(model.get_input_embeddings().weight) for model in (teacher, student)]
    if student_tokenizer is None and sizes[0] != sizes[1]:
        raise ValueError(
            f"the teacher has {sizes[0]} word vectors, the student {sizes[1]}: give the student's tokenizer"
        )
    if min(sizes) < len(tokenizer):
        raise ValueError(
            f"the tokenizer has {len(tokenizer)} tokens, one of the models has embeddings for {min(sizes)}"
        )
    named = [
        sorted(model.config.id2label.items(), key=lambda item: int(item[0]))
        for model in (teacher, student)
    ]
    orders = [[str(name).lower() for _, name in labels] for labels in named]
    if orders[0] != orders[1]:
        raise ValueError(
            f"the labels are {orders[0]} in the teacher and {orders[1]} in the student: set id2label"
        )
    for who, model in (("teacher", teacher), ("student", student)):
        if model.config.problem_type not in (None, "single_label_classification"):
            raise ValueError(
                f"the {who} is for {model.config.problem_type}: a softmax is for labels that exclude each other"
            )
    held = {_memory(parameter) for parameter in teacher.parameters()} - {0}
    for name, parameter in student.named_parameters():
        if _memory(parameter) in held:
            raise ValueError(
                f"{name} is the teacher's own tensor: training the student would change the teacher"
            )


def _memory(parameter: torch.Tensor) -> int:
    """Where a parameter's numbers are; 0 for those without memory of their own (none, on "meta", torchao's int8)."""
    return parameter.untyped_storage().data_ptr() if type(parameter) is nn.Parameter else 0


def distill(
    student, teacher, tokenizer, examples, *, temperature=math.inf, hard=0.0, file=None, **training
):
    """Train a student to match its teacher, in place; returns the loss of every step.

    ``examples`` is a table with the columns id, text and, if ``hard`` > 0, label (-100 for none). ``temperature`` and
    ``hard`` are those of :func:`distillation_loss` (``hard=1`` is plain fine-tuning), ``file`` keeps the teacher's
    logits, ``training`` goes to :func:`train`. The teacher is in eval mode and wants no gradient from then on. Raises
    ValueError, before anything is trained, if :func:`check_pair` does, for a student that cannot be trained, for labels
    and logits that :func:`distillation_loss` refuses, and for another ``max_length`` than the teacher's, 128.
    """
    check_pair(teacher, student, tokenizer)
    _trainable(student, **training)
    if training.get("max_length", batching.MAX_LENGTH) != batching.MAX_LENGTH:
        raise ValueError(
            f"the teacher judges {batching.MAX_LENGTH} tokens of a text: leave max_length out"
        )
    ids, texts = examples["id"].tolist(), examples["text"].tolist()
    labels = examples["label"].tolist() if hard else [UNLABELLED] * len(texts)
    one, other = (
        predict(model, tokenizer, texts[:1]).expand(len(texts), -1) for model in (student, teacher)
    )
    distillation_loss(
        one, other, labels, temperature=temperature, hard=hard
    )  # complains before minutes have passed
    teacher.eval().requires_grad_(False)
    labels = torch.tensor(labels)
    targets = teacher_logits(teacher, tokenizer, ids, texts, file)
    goal = (temperature, hard, labels.tolist(), targets.round(decimals=2).tolist())

    def loss(logits, rows):
        return distillation_loss(
            logits, targets[rows], labels[rows], temperature=temperature, hard=hard
        )

    return train(student, tokenizer, texts, loss, goal=goal, **training)


def _trainable(
    model: nn.Module, *, epochs: int = 1, batch_size: int = 32, **_
) -> list[nn.Parameter]:
    """The parameters that :func:`train` changes. Raises ValueError if it cannot."""
    if epochs < 1 or batch_size < 1:
        raise ValueError(
            f"epochs and batch_size have to be at least 1, not {epochs} and {batch_size}"
        )
    found = {
        name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
    }
    if not found:
        raise ValueError(
            "no parameter of the model wants a gradient: call requires_grad_(True) on what is to learn"
        )
    # Layers of torch.ao have a method in the place of their weight, those of torchao a tensor of another class.
    int8 = any(callable(getattr(module, "weight", None)) for module in model.modules())
    int8 = int8 or any(type(parameter) is not nn.Parameter for parameter in model.parameters())
    if int8 and not any("lora_" in name for name in found):
        raise ValueError(
            "int8 weights get no gradient: train the float model and quantize it afterwards"
        )
    if any(parameter.dtype == torch.float16 for parameter in found.values()):
        raise ValueError(
            "AdamW's first step turns float16 weights into NaN: train model.float(), or bfloat16"
        )
    return list(found.values())


def _digest(parameters: Iterable[torch.Tensor]) -> str:
    """The SHA-256 of parameters' numbers (``dequantize`` gives float32, from torchao's int8 as well)."""
    total = hashlib.sha256()
    for parameter in parameters:
        total.update(parameter.detach().dequantize().cpu().contiguous().numpy())
    return total.hexdigest()


def _load(file: Path) -> dict:
    """What a training kept, on the CPU."""
    return dict(torch.load(file, weights_only=True, map_location="cpu"))


def _put(parameters: Iterable[torch.Tensor], values: Iterable[torch.Tensor]) -> None:
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value)


def train(
    model: nn.Module,
    tokenizer,
    texts: Iterable,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    *,
    epochs: int = 1,
    lr: float = 2e-4,
    batch_size: int = 32,
    max_length: int = batching.MAX_LENGTH,
    seed: int = 0,
    after_step: Callable[[int, float], None] | None = None,
    checkpoint: str | Path | None = None,
    goal: object = None,
    quiet: bool | None = None,
) -> list[float]:
    """Train a classifier's trainable parameters with AdamW, warm-up over 6 % of the steps and a linear decay.

    ``loss(logits, rows)`` gets logits of shape (batch, labels) and the positions of their texts in ``texts``, shape
    (batch,), so that targets kept by row always belong to the batch, however it was shuffled. ``after_step`` gets the
    step's number and its loss. Texts are cut at ``max_length`` tokens, or at what the model can read.

    Every `KEEP_EVERY` steps all state goes to ``checkpoint``, from which an interrupted training goes on (on a CPU
    exactly): with the model as it was first, or as it was left, since an error or a stop puts back what was last kept.
    ValueError if another training left it there, one with other settings, texts, configuration, first weights (to the
    last digit) or another ``goal``, which stands for what the loss compares with; or if the file is damaged.

    Raises ValueError as well for a model without anything to train, with int8 or float16 weights, or that is no
    classifier of whole texts, for fewer than one epoch or text a batch, and for a loss that is no number with a
    gradient; FloatingPointError if logits or loss are not finite. The progress bar is silent under
    HF_HUB_DISABLE_PROGRESS_BARS. Returns the loss of every step and leaves the model in eval mode, come what may.
    """
    trained = _trainable(model, epochs=epochs, batch_size=batch_size)
    encoded, lengths = batching.encode(
        tokenizer, texts, min(max_length, inspection.max_input_length(model))
    )
    shuffled = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)  # dropout
    optimizer = torch.optim.AdamW(trained, lr=lr, weight_decay=0.01)
    batches = [
        rows for _ in range(epochs) for rows in _shuffled_batches(lengths, batch_size, shuffled)
    ]
    steps = len(batches)
    warmup = max(1, round(0.06 * steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, (steps - step) / max(1, steps - warmup))
    )
    history: list[float] = []
    if checkpoint:
        checkpoint = Path(checkpoint)
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        named = [
            (name, value.dtype, value.requires_grad) for name, value in model.named_parameters()
        ]
        config = getattr(unwrap(model), "config", None)
        config = config and {
            key: value for key, value in config.to_dict().items() if key not in _SAVED
        }
        fixed = _digest(
            parameter for parameter in model.parameters() if not parameter.requires_grad
        )
        parts = (goal, epochs, lr, batch_size, seed, encoded, named, config, fixed)
        plan, first = hashlib.sha256(repr(parts).encode()).hexdigest(), _digest(trained)
    if checkpoint and checkpoint.exists():
        saved = _read(checkpoint, _load)
        if saved.get("plan") != plan or first not in (saved["first"], _digest(saved["trained"])):
            raise ValueError(
                f"{checkpoint} was left by another training: repeat its settings, or remove the file"
            )
        _put(trained, saved["trained"])
        optimizer.load_state_dict(saved["optimizer"])
        schedule.load_state_dict(saved["schedule"])
        torch.set_rng_state(saved["dropout"])
        history, first = saved["history"], saved["first"]
    quiet = are_progress_bars_disabled() if quiet is None else quiet
    try:
        model.train()
        with tqdm(
            total=steps,
            initial=len(history),
            disable=quiet,
            desc="training",
            unit="step",
            leave=False,
        ) as bar:
            for rows in batches[len(history) :]:
                logits = _logits(model, tokenizer, encoded, rows)
                if not logits.isfinite().all():
                    raise FloatingPointError(
                        f"the logits of step {len(history) + 1} hold NaN or infinity: lower lr"
                    )
                value = loss(logits, torch.tensor(rows))
                if not isinstance(value, torch.Tensor) or value.dim() or not value.requires_grad:
                    raise ValueError(
                        f"the loss is {value!r}, not one number with a gradient (is it under no_grad?)"
                    )
                if not value.isfinite():
                    raise FloatingPointError(
                        f"the loss of step {len(history) + 1} is {float(value.detach())}"
                    )
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
                    state = {
                        "optimizer": optimizer.state_dict(),
                        "schedule": schedule.state_dict(),
                        "history": history,
                    }
                    state |= {
                        "trained": [parameter.detach() for parameter in trained],
                        "first": first,
                    }
                    with files.atomic_write(checkpoint) as part:
                        torch.save(state | {"dropout": torch.get_rng_state(), "plan": plan}, part)
    except BaseException:
        if checkpoint and checkpoint.exists():
            _put(trained, _load(checkpoint)["trained"])
        raise
    finally:
        model.eval()
    return history


def _shuffled_batches(
    lengths: list[int], batch_size: int, generator: torch.Generator
) -> list[list[int]]:
    """All rows once, in random order, in batches of texts of about the same length."""
    order = torch.randperm(len(lengths), generator=generator).tolist()
    pools = [
        order[start : start + _POOL * batch_size]
        for start in range(0, len(order), _POOL * batch_size)
    ]
    groups = []
    for pool in pools:
        pool.sort(key=lengths.__getitem__)
        groups += [pool[start : start + batch_size] for start in range(0, len(pool), batch_size)]
    return [groups[i] for i in torch.randperm(len(groups), generator=generator).tolist()]
