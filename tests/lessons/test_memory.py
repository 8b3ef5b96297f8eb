"""memory: predictions against the profiler, a pretended card, and what a notebook keeps alive."""

import functools
import gc
import random
import subprocess
import sys
import weakref

from helpers import exercises
from helpers.core.processes import process_memory
from helpers.core.tensors import GIB, MIB
from helpers.lessons import free_memory, memory, training_step
from helpers.lessons.fake_gpu import FakeGPU
from helpers.lessons.memory import largest_batch, measure_peak, predict_peak, state_bytes
from helpers.lessons.training_step import Step

import pytest
import torch
from torchao.quantization import Int8WeightOnlyConfig, quantize_
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    DistilBertConfig,
    RobertaConfig,
)

SIZES = {
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 64,
}
TINY = BertConfig(hidden_size=32, intermediate_size=64, **SIZES)
LONG = BertConfig(hidden_size=32, intermediate_size=64, **SIZES | {"max_position_embeddings": 512})
BASE = BertConfig()
SHALLOW = BertConfig(num_hidden_layers=2)


def measured(config, batch, length, **options):
    """Without oneDNN, whose buffers for 16-bit matrix products differ by processor."""
    step = Step(config, batch, length, **options)
    with torch.backends.mkldnn.flags(enabled=False):
        return measure_peak(step.run, step.model, step.optimizer, step.inputs).allocated


def batch_of(batch, length, device="cpu"):
    ids = torch.ones(batch, length, dtype=torch.long, device=device)
    mask = torch.ones_like(ids)
    mask[0, -1] = 0
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": torch.zeros(batch, dtype=torch.long, device=device),
    }


# --- Prediction against measurement ---


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"padded": False},
        {"attention": "eager"},
        {"optimizer": "sgd"},
        {"mode": "inference"},
        {"mode": "inference", "dtype": "bfloat16"},
        {"dtype": "bfloat16"},
        {"mixed_precision": True},
        {"accumulate": 4},
        {"checkpointing": True},
        {"freeze": "embeddings"},
        {"freeze": 1, "checkpointing": True},
        {"freeze": "body"},
        {"lora": 4},
        {"lora": 4, "dtype": "bfloat16", "checkpointing": True},
    ],
    ids=str,
)
def test_every_lever_is_predicted_as_measured(options):
    assert predict_peak(TINY, 5, 33, **options).total == pytest.approx(
        measured(TINY, 5, 33, **options), rel=0.005
    )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_second_micro_batch_alone_decides(device, monkeypatch):
    """A prediction runs only the second one, over gradients that are there.

    Both together give the same phases.
    """
    options = {"device": device, "accumulate": 3, "freeze": "embeddings"}
    alone = predict_peak(TINY, 5, 33, **options)
    monkeypatch.setattr(memory, "_predicted", {})
    monkeypatch.setattr(memory, "skip_first", lambda step, ledger: None)
    both = predict_peak(TINY, 5, 33, **options)
    assert (alone.phases, alone.moment) == (both.phases, both.moment)


@pytest.mark.parametrize("length", [40, 200, 512])
def test_the_hidden_buffers_of_the_cpus_fused_attention_are_counted(length):
    config = BertConfig(**LONG.to_dict() | {"attention_probs_dropout_prob": 0.0})
    for options in ({}, {"mode": "inference", "dtype": "bfloat16"}):
        assert predict_peak(config, 2, length, **options).total == pytest.approx(
            measured(config, 2, length, **options), rel=0.005
        )


def test_random_configurations_are_predicted_within_the_target():
    rng, errors = random.Random(20), []
    for _ in range(12):
        hidden = rng.choice([32, 64, 128])
        config = BertConfig(
            hidden_size=hidden, num_hidden_layers=rng.randint(1, 2),
            num_attention_heads=hidden // 32,
            intermediate_size=hidden * rng.randint(2, 4), vocab_size=rng.choice([100, 5000]),
        )  # fmt: skip
        options = {
            "mode": rng.choice(["inference", "training"]),
            "attention": rng.choice(["sdpa", "eager"]),
        }
        options |= {"padded": rng.random() < 0.5, "checkpointing": rng.random() < 0.5}
        batch, length = rng.randint(1, 8), rng.randint(4, 200)
        errors.append(
            abs(
                predict_peak(config, batch, length, **options).total
                / measured(config, batch, length, **options)
                - 1
            )
        )
    assert sorted(errors)[6] <= 0.01
    assert max(errors) <= 0.03


def test_lora_over_16_bit_weights_keeps_float32_copies_of_its_inputs(monkeypatch):
    """That is why it can take more than training everything in 16 bit.

    With adapters in 16 bit it takes less.
    """
    half = {"dtype": "bfloat16"}
    whole, lora = (measured(TINY, 8, 60, **half | lever) for lever in ({}, {"lora": 4}))
    adapters = functools.partial(training_step.get_peft_model, autocast_adapter_dtype=False)
    monkeypatch.setattr(training_step, "get_peft_model", adapters)
    assert lora > whole > measured(TINY, 8, 60, **half | {"lora": 4})


def test_a_loop_written_by_hand_takes_what_was_predicted():
    model = BertForSequenceClassification(TINY).train()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = batch_of(6, 50)

    def train():
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()

    train()
    optimizer.zero_grad()
    peak = measure_peak(train, model, optimizer, batch).allocated
    assert predict_peak(TINY, 6, 50).total == pytest.approx(peak, rel=0.005)


@pytest.mark.parametrize(
    "config",
    [
        RobertaConfig(hidden_size=32, intermediate_size=64, **SIZES),
        DistilBertConfig(
            dim=32, hidden_dim=64, n_layers=2, n_heads=2, vocab_size=100, max_position_embeddings=64
        ),
    ],
    ids=["roberta", "distilbert"],
)
def test_relatives_of_bert(config):
    for options in ({}, {"freeze": 1}, {"lora": 4}):
        assert predict_peak(config, 4, 20, **options).total == pytest.approx(
            measured(config, 4, 20, **options), rel=0.005
        )


def test_the_predicted_largest_batch_is_the_true_one_within_one():
    gib = 2 * MIB / GIB
    best = largest_batch(TINY, 40, gib, margin=0)
    assert best > 2
    assert measured(TINY, best - 1, 40) <= gib * GIB < measured(TINY, best + 2, 40)
    assert largest_batch(TINY, 40, gib / 1000, margin=0) == 0
    assert largest_batch(TINY, 40, gib, margin=0.3) < best


@pytest.fixture(scope="module")
def fresh_process():
    """What a process of its own printed, line by line.

    A prediction of BERT-large, then a notebook's shell.
    """
    code = """
import helpers, gc, weakref, torch
from transformers import BertConfig
from helpers.core import processes
from helpers.lessons import free_memory, memory
state = torch.get_rng_state()
sizes = {"num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
config = BertConfig(hidden_size=1024, **sizes)
print(memory.predict_peak(config, 32, 512).total, processes.process_peak())
assert torch.equal(state, torch.get_rng_state())
assert memory.measure_peak(lambda: torch.ones(1000)).allocated >= 4000

from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("import torch, weakref, gc; refs = []")
store = {"store_history": True}
shell.run_cell("shown = torch.ones(1000); refs.append(weakref.ref(shown)); shown", **store)
shell.run_cell("del shown")
code = "def f():\\n    big = torch.ones(1000); refs.append(weakref.ref(big)); 1 / 0\\nf()"
shell.run_cell(code, **store)
shell.run_cell("w = torch.ones(50, requires_grad=True); loss = (w * 2).sum()")
shell.run_cell("kept = {'model': torch.nn.Linear(3, 4)}")
gc.collect()
refs = shell.user_ns["refs"]
assert [ref() is not None for ref in refs] == [True, True]
report = free_memory.free_memory()
assert [ref() for ref in refs] == [None, None]
print([name for name, _, _ in report.holders])
print(report)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    return run.stdout.splitlines()


def test_a_prediction_of_bert_large_needs_little_memory_and_leaves_no_trace(fresh_process):
    total, process = fresh_process[0].split()
    assert int(total) > 60 * GIB
    assert int(process) < GIB


def test_answers_are_remembered(monkeypatch):
    first = predict_peak(TINY, 3, 9)
    monkeypatch.setattr(memory, "Step", None)
    assert predict_peak(TINY, 3, 9) is first


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"batch": 0}, "is not a step"),
        ({"length": 65}, "at most 64"),
        ({"accumulate": -2}, "is not a step"),
        ({"mode": "train"}, "is not a step"),
        ({"mixed_precision": True, "dtype": "bfloat16"}, "mixed precision"),
        ({"lora": 4, "freeze": "body"}, "either lora or freeze"),
        ({"freeze": 3}, "0 to 2 layers"),
        ({"freeze": "head"}, "0 to 2 layers"),
        ({"device": "cuda:0"}, "has to be"),
    ],
)
def test_what_would_measure_something_else_is_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        predict_peak(**{"config": TINY, "batch": 1, "length": 8} | changes)


@pytest.mark.parametrize(
    "around",
    [torch.no_grad, torch.inference_mode, lambda: torch.device("meta")],
    ids=["no_grad", "inference_mode", "another default device"],
)
def test_a_prediction_does_not_depend_on_what_is_switched_on_around_it(around, monkeypatch):
    usual = predict_peak(TINY, 3, 9)
    monkeypatch.setattr(memory, "_predicted", {})
    with around():
        assert predict_peak(TINY, 3, 9) == usual
    with (
        pytest.raises(ValueError, match="mixed_precision=True"),
        torch.autocast("cpu", torch.bfloat16),
    ):
        predict_peak(TINY, 3, 9)


def test_inference_knows_no_accumulation_and_the_kind_of_loss_does_not_matter():
    inference = {"mode": "inference"}
    assert predict_peak(TINY, 3, 9, accumulate=4, **inference) == predict_peak(
        TINY, 3, 9, **inference
    )
    labels = {"hidden_size": 32, "intermediate_size": 64, "num_labels": 3} | SIZES
    single, multi = (
        predict_peak(BertConfig(problem_type=kind, **labels), 3, 9)
        for kind in (None, "multi_label_classification")
    )
    assert multi == single


# --- The model of a card ---


def test_a_card_keeps_no_square_of_the_length_but_the_cpu_does():
    def growth(device):
        short, long = (
            predict_peak(LONG, 4, length, device=device, padded=False).terms["activations"]
            for length in (256, 512)
        )
        return long / short

    assert growth("cuda") < 2.5 < 3 < growth("cpu")


def test_cards_dropout_keeps_a_byte_and_its_optimizer_a_copy_of_the_weights():
    config = BertConfig(**LONG.to_dict() | {"attention_probs_dropout_prob": 0.0})
    none = BertConfig(**config.to_dict() | {"hidden_dropout_prob": 0.0})
    batch, length, places = 8, 512, 1 + 2 * config.num_hidden_layers
    masks = {
        device: (
            predict_peak(config, batch, length, device=device, optimizer="sgd").allocated
            - predict_peak(none, batch, length, device=device, optimizer="sgd").allocated
        )
        / (places * batch * length * config.hidden_size)
        for device in ("cpu", "cuda")
    }
    # A mask of a byte and the output of dropout are kept on a card; the CPU keeps a float mask
    # instead of the byte.
    assert 2 < masks["cpu"] - masks["cuda"] < 4
    peak = predict_peak(SHALLOW, 1, 16, device="cuda")
    assert "optimizer step" in peak.moment
    assert peak.terms["optimizer"] == pytest.approx(3 * peak.terms["weights"], rel=0.01)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_checkpointing_on_a_card_recomputes_with_the_cards_kernels(checkpointing):
    peak = predict_peak(LONG, 4, 500, device="cuda", checkpointing=checkpointing, lora=2)
    assert (
        peak.allocated < predict_peak(LONG, 4, 500, checkpointing=checkpointing, lora=2).allocated
    )


def test_peak_names_its_terms_its_moment_and_its_assumptions():
    peak = predict_peak(TINY, 4, 16, device="cuda")
    assert peak.total == sum(peak.terms.values())
    assert peak.total - peak.allocated == peak.terms["context"] + peak.terms["allocator"]
    html = peak._repr_html_()
    assert all(
        text in html for text in (*peak.terms, "total", peak.moment, "not yet confirmed on a GPU")
    )
    assert "activations" in str(peak)


# --- FakeGPU ---


def test_a_pretended_card_runs_out_and_a_smaller_batch_is_the_cure():
    before = process_memory()
    with FakeGPU(4, pretend=True) as gpu:
        four = BertConfig(num_hidden_layers=4)
        model = AutoModelForSequenceClassification.from_config(four).to(gpu.device).train()
        optimizer = torch.optim.AdamW(model.parameters())

        def train(size):
            loss = model(**batch_of(size, 512, gpu.device)).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.item()

        held = gpu.allocated
        with pytest.raises(torch.OutOfMemoryError) as error:
            train(64)
        assert "CUDA out of memory. Tried to allocate" in str(error.value)
        assert "total capacity of 4.00 GiB" in str(error.value)
        del error
        sys.last_value = None
        gc.collect()
        assert gpu.allocated == held
        assert train(2) != train(2)  # nan: nothing is computed
        assert gpu.allocated == pytest.approx(3 * held, rel=0.02)  # the weights and two moments
    assert process_memory() - before < 300 * MIB


def test_the_pretended_card_agrees_with_the_prediction():
    peak = predict_peak(LONG, 8, 512, device="cuda")
    for share, fits in ((1.01, True), (0.99, False)):
        capacity = peak.total + (share - 1) * peak.allocated
        with FakeGPU(capacity / GIB, pretend=True):
            step = Step(LONG, 8, 512)
            if fits:
                step.run()
            else:
                with pytest.raises(torch.OutOfMemoryError):
                    step.run()


def test_a_model_from_outside_has_to_be_placed():
    model, batch = BertForSequenceClassification(TINY).eval(), batch_of(2, 8)
    expected = model(**batch).logits
    with FakeGPU(1, pretend=True) as gpu:
        with pytest.raises(RuntimeError, match=r"gpu\.place"):
            model(**batch)
        placed = gpu.place(model)
        assert gpu.allocated >= state_bytes(model)["weights"]
        with torch.autocast(gpu.device, torch.bfloat16):
            assert placed(**gpu.place(batch)).logits.dtype == torch.bfloat16
        placed.half()
        assert placed.dtype == torch.float16
        assert gpu.place(placed.classifier.weight) is placed.classifier.weight
    assert torch.equal(model(**batch).logits, expected)


def test_a_model_read_from_a_file_inside_the_block_has_to_be_placed_too(tmp_path):
    BertModel(TINY).save_pretrained(tmp_path)
    with FakeGPU(1, pretend=True) as gpu:
        model = BertModel.from_pretrained(tmp_path).to(gpu.device)
        with pytest.raises(RuntimeError, match=r"read from a file.*gpu\.place"):
            model(torch.ones(1, 4, dtype=torch.long))
        assert gpu.place(model)(torch.ones(1, 4, dtype=torch.long)).pooler_output.shape == (1, 32)


def test_a_quantized_model_is_placed_as_it_is_stored():
    model = BertModel(TINY).eval()
    whole = state_bytes(model)["weights"]
    quantize_(model, Int8WeightOnlyConfig())
    with FakeGPU(1, pretend=True) as gpu, torch.no_grad():
        placed = gpu.place(model)
        assert state_bytes(placed) == state_bytes(model)
        assert state_bytes(model)["weights"] <= gpu.allocated  # a block is a multiple of 512 bytes
        assert placed(torch.ones(2, 8, dtype=torch.long)).pooler_output.shape == (2, 32)
    assert state_bytes(model)["weights"] < whole / 2


def test_sizes_that_no_card_has():
    with pytest.raises(ValueError, match="context"):
        FakeGPU(0.2)


def test_odd_uses_of_a_pretended_card():
    gpu = FakeGPU(1, pretend=True)
    with pytest.raises(RuntimeError, match="only inside its block"):
        gpu.place(torch.ones(3))
    with pytest.raises(ZeroDivisionError), gpu:
        1 / 0  # noqa: B018
    assert type(torch.ones(2)) is torch.Tensor  # an error leaves nothing behind
    with gpu:
        with pytest.raises(RuntimeError, match="another FakeGPU"), gpu:
            pass
        with FakeGPU(2, pretend=True) as other:
            kept = torch.ones(1000)
            assert (gpu.allocated, other.allocated) == (0, 4096)
        for thing in ([1, 2], "text"):
            with pytest.raises(TypeError, match="a module, a tensor or a mapping"):
                gpu.place(thing)
        with pytest.raises(RuntimeError, match=r"read gpu\.allocated"):
            measure_peak(lambda: kept)
        with pytest.raises(RuntimeError, match="broadcast"):
            torch.ones(3).add_(torch.ones(4))


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda: torch.ones(3).nonzero(), "nothing is computed"),
        (lambda: torch.ones(3).to("cuda"), "gpu.device"),
    ],
    ids=["a shape that depends on values", "cuda by name"],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card of that name")
def test_an_error_of_pretending_says_so(function, says):
    with pytest.raises(Exception) as caught, FakeGPU(1, pretend=True):
        function()
    assert says in " ".join(caught.value.__notes__)


def test_a_measurement_that_would_be_wrong_is_refused():
    with pytest.raises(RuntimeError, match="a profiler is running"):
        measure_peak(lambda: measure_peak(lambda: torch.ones(9)))
    with pytest.raises(ZeroDivisionError):
        measure_peak(lambda: 1 / 0)
    assert measure_peak(lambda: torch.ones(1000)).allocated == 4000
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="Predict with"):
            measure_peak(lambda: None, device="cuda")


def test_with_cuda_the_real_card_is_held_to_the_size(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (70 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda: 0.5)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", calls.append)
    with FakeGPU(8) as gpu:
        assert (gpu.device, gpu.pretend) == ("cuda", False)
    assert calls == [
        pytest.approx((8 * GIB - memory.CUDA_CONTEXT - memory.CUBLAS_WORKSPACE) / (80 * GIB)),
        0.5,
    ]
    with pytest.raises(ValueError, match=r"80\.00 GiB"), FakeGPU(100):
        pass


# --- Reported cases ---


def fails_with_a_big_tensor(references):
    big = torch.ones(1000)
    references.append(weakref.ref(big))
    raise RuntimeError("interrupted")


def test_case_14_an_error_keeps_the_memory_until_it_is_forgotten():
    references = []
    try:
        fails_with_a_big_tensor(references)
    except RuntimeError as error:
        sys.last_value, sys.last_exc, sys.last_traceback = (
            error,
            error,
            error.__traceback__,
        )  # as a prompt does
    gc.collect()
    assert references[0]() is not None
    free_memory.free_memory({})
    assert references[0]() is None
    assert not hasattr(sys, "last_value")


def test_case_14_an_error_raised_from_itself_ends_the_search():
    references = []
    try:
        fails_with_a_big_tensor(references)
    except RuntimeError as error:
        error.__cause__ = error
        sys.last_value = error
    free_memory.free_memory({})
    assert references[0]() is None


def test_case_14_in_ipython_also_out_and_underscore(fresh_process):
    assert "['w', 'kept', 'loss']" in fresh_process
    assert any("loss: 0.00 MiB, an output with its graph" in line for line in fresh_process)


def test_free_memory_names_who_holds_what():
    model = BertModel(TINY)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    output = model(torch.ones(1, 4, dtype=torch.long))
    names = {
        "model": model,
        "optimizer": optimizer,
        "output": output,
        "text": "no tensor",
        "_": model,
    }
    what = {
        name: text.split()[1] for name, size, text in free_memory.free_memory(names).holders if size
    }
    assert what == {
        "model": "model:",
        "optimizer": "optimizer:",
        "output": "output",
    }


class Raises(dict):
    def values(self):
        raise RuntimeError("not to be looked into")


def test_free_memory_does_not_stumble_over_what_it_looks_into():
    names = {
        "odd": Raises(a=1),
        "sparse": torch.eye(3).to_sparse(),
        "lazy": torch.nn.LazyLinear(3),
    }
    report = free_memory.free_memory(names | {"kept": torch.ones(10)})
    assert [row[:2] for row in report.holders] == [("sparse", 60), ("kept", 40)]


def test_case_16_the_second_model_fits_when_the_first_is_gone():
    with FakeGPU(0.8, pretend=True):
        first = AutoModelForSequenceClassification.from_config(BertConfig(num_hidden_layers=8))
        with pytest.raises(torch.OutOfMemoryError):
            AutoModelForSequenceClassification.from_config(BertConfig(num_hidden_layers=8))
        del first
        sys.last_value = None
        gc.collect()
        AutoModelForSequenceClassification.from_config(BertConfig(num_hidden_layers=8))


def test_case_17_three_numbers_a_sentence_each():
    lines = str(memory.Measured(0, 20 * MIB, 400 * MIB)).splitlines()
    assert [line.split()[0] for line in lines] == ["allocated", "reserved", "process"]
    assert "keeps 20.00 MiB" in lines[1]
    assert "380.00 MiB of it is the CUDA context" in lines[2]


def test_case_17_on_a_card_the_numbers_are_cudas_own(monkeypatch):
    for name, value in {
        "reset_peak_memory_stats": None,
        "max_memory_allocated": 7,
        "max_memory_reserved": 9,
        "mem_get_info": (60, 80),
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    ran = []
    assert measure_peak(lambda: ran.append(1), device="cuda") == memory.Measured(7, 9, 20)
    assert ran == [1]


def test_case_18_verdicts_and_the_levers_in_order():
    base = predict_peak(BASE, 4, 200, device="cuda")
    assert base.verdict(4) == "fits"
    assert base.verdict(base.total / GIB * 1.05) == "tight"
    assert base.verdict(2) == "does not fit"
    options, peaks = {"batch": 32, "length": 512, "device": "cuda", "optimizer": "sgd"}, []
    for lever in (
        {},
        {"length": 256},
        {"batch": 8},
        {"checkpointing": True},
        {"dtype": "bfloat16"},
    ):
        options |= lever
        peaks.append(predict_peak(SHALLOW, **options))
    assert peaks[0].verdict(2) == "does not fit"
    assert peaks[-1].verdict(1) == "fits"
    totals = [peak.total for peak in peaks]
    assert totals == sorted(set(totals), reverse=True)


WEIGHTS, HEAD, WORDS = (
    4 * 109_483_778,
    4 * 2 * 769,
    4 * 30522 * 768,
)  # BERT-base with two classes, in float32


@pytest.mark.parametrize(
    ("options", "gradients", "optimizer"),
    [
        (
            {},
            WEIGHTS,
            2 * WEIGHTS + 2 * WORDS,
        ),  # the step itself needs two more tensors of the largest size
        ({"optimizer": "sgd"}, WEIGHTS - WORDS, 0),  # the last gradient is still being made
        ({"freeze": "body"}, 0, 2 * HEAD),  # its peak comes before there is a gradient
        ({"mode": "inference"}, 0, 0),
    ],
    ids=str,
)
def test_case_19_every_term_of_base_is_stated(options, gradients, optimizer):
    terms = predict_peak(BASE, 1, 8, **options).terms
    assert terms["weights"] == pytest.approx(WEIGHTS, rel=1e-4)
    assert terms.get("gradients", 0) == pytest.approx(gradients, rel=0.01)
    assert terms.get("optimizer", 0) == pytest.approx(optimizer, rel=0.01)


def tiny_frozen_below(use_reentrant):
    model = BertForSequenceClassification(TINY).train()
    training_step.freeze_part(model, 1)
    reentrant(model, use_reentrant)
    return model


def reentrant(model, use_reentrant=True):
    """Checkpointing as it was before transformers hid the trap."""
    model.gradient_checkpointing_enable(
        gradient_checkpointing_kwargs={"use_reentrant": use_reentrant}
    )
    model.disable_input_require_grads()


@pytest.mark.filterwarnings("ignore")
def test_case_21_reentrant_checkpointing_over_frozen_layers_trains_nothing():
    model = tiny_frozen_below(use_reentrant=True)
    model(**batch_of(2, 8)).loss.backward()
    with pytest.raises(RuntimeError, match="no gradient for"):
        training_step.check_gradients(model)
    model = tiny_frozen_below(use_reentrant=False)
    model(**batch_of(2, 8)).loss.backward()
    training_step.check_gradients(model)
    with pytest.raises(RuntimeError, match="any parameter"):
        training_step.check_gradients(model.requires_grad_(False))


@pytest.mark.filterwarnings("ignore")
def test_case_22_no_saving_is_reported_for_a_training_that_does_not_happen():
    step = Step(TINY, 2, 8, freeze=1)
    reentrant(step.model)
    with pytest.raises(RuntimeError, match="no gradient for"):
        measure_peak(step.run, step.model, step.optimizer)


def test_case_24_what_freezing_saves_and_that_frozen_layers_stop_dropping_out():
    def bytes_after_a_step(part):
        step = Step(TINY, 2, 8, freeze=part)
        step.model(**step.inputs).loss.backward()
        step.optimizer.step()
        return state_bytes(step.model, step.optimizer), step.model

    whole, _ = bytes_after_a_step(None)
    assert whole["gradients"] == whole["weights"] == 4 * whole["parameters"]
    assert whole["optimizer"] == pytest.approx(2 * whole["gradients"], rel=0.01)
    frozen, model = bytes_after_a_step("body")
    assert frozen["weights"] == whole["weights"]
    assert frozen["trainable"] == 2 * 33
    assert frozen["gradients"] == 4 * 2 * 33
    body = model.bert
    ids = torch.ones(1, 6, dtype=torch.long)
    assert torch.equal(body(ids).pooler_output, body(ids).pooler_output)
    loaded = BertForSequenceClassification(TINY)
    assert all(p.requires_grad for p in loaded.parameters())  # nothing is frozen by being loaded


def test_case_25_the_file_decides_the_dtype_unless_it_is_stated(tmp_path):
    BertModel(TINY).half().save_pretrained(tmp_path)
    assert BertModel.from_pretrained(tmp_path).dtype == torch.float16
    stated = BertModel.from_pretrained(tmp_path, dtype=torch.float32)
    assert stated.dtype == torch.float32
    halves, floats = (
        predict_peak(TINY, 1, 4, mode="inference", dtype=d).terms["weights"]
        for d in ("float16", "float32")
    )
    assert floats - halves == 2 * state_bytes(BertForSequenceClassification(TINY))["parameters"]
    model = BertModel(TINY)
    size = state_bytes(model)["weights"]
    assert (
        measure_peak(lambda: BertModel.from_pretrained(tmp_path, dtype=torch.float32)).allocated
        < 2.2 * size
    )


# --- The exercises of notebook 02 ---


def accumulated(scale=1 / 3, last_only=False, step=False):
    def answer(model, micro_batches):
        for micro in micro_batches:
            if last_only:
                model.zero_grad()
            (model(**micro).loss * scale).backward()
        if step:
            torch.optim.SGD(model.parameters(), lr=0.1).step()

    return answer


def all_at_once(model, micro_batches):
    model(
        **{name: torch.cat([micro[name] for micro in micro_batches]) for name in micro_batches[0]}
    ).loss.backward()


def one_backward(model, micro_batches):
    sum(model(**micro).loss for micro in micro_batches).div(3).backward()


def head_only(body=True, head=False, still=True, all_still=False):
    def answer(model):
        model.bert.requires_grad_(not body)
        model.classifier.requires_grad_(not head)
        model.bert.train(not still)
        if all_still:
            model.eval()

    return answer


@pytest.mark.parametrize(
    ("check", "answer", "says"),
    [
        (exercises.check_02_1, {"batch": 2, "accumulate": 16}, "correct"),
        (exercises.check_02_1, {"batch": 2, "accumulate": 16, "dtype": torch.float32}, "correct"),
        (exercises.check_02_1, {"batch": 2}, "2 x 1 texts"),
        (exercises.check_02_1, {"batch": 32, "lora": 4}, "not every parameter"),
        (exercises.check_02_1, {"batch": 32, "dtype": "bfloat16"}, "stay in float32"),
        (exercises.check_02_1, {"batch": 32}, "largest part is activations"),
        (exercises.check_02_1, {"batch": "2", "accumulate": 16}, "not quite"),
        (exercises.check_02_2, accumulated(), "correct"),
        (exercises.check_02_2, accumulated(scale=1), "3 times too large"),
        (exercises.check_02_2, accumulated(last_only=True), "not those of the large batch"),
        (exercises.check_02_2, accumulated(step=True), "weights have changed"),
        (exercises.check_02_2, lambda model, micro_batches: None, "no gradients"),
        (exercises.check_02_2, all_at_once, "of 6 texts are alive at once"),
        (exercises.check_02_2, one_backward, "of 6 texts are alive at once"),
        (exercises.check_02_3, head_only(), "correct"),
        (exercises.check_02_3, head_only(body=False), "still trained"),
        (exercises.check_02_3, head_only(head=True), "nothing is left to train"),
        (exercises.check_02_3, head_only(still=False), "dropout is still on"),
        (exercises.check_02_3, head_only(all_still=True), "no longer in training mode"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_exercises(check, answer, says, capsys):
    check(answer)
    assert says in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")  # PyTorch calls the older way deprecated
def test_quantized_weights_are_counted_as_they_are_stored():
    model = BertModel(TINY)
    before = state_bytes(model)["weights"]
    quantize_(model, Int8WeightOnlyConfig())
    linear = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))
    assert (
        3 * linear > before - state_bytes(model)["weights"] > 2 * linear
    )  # a byte each, and a scale for every row
    old = torch.ao.quantization.quantize_dynamic(
        torch.nn.Sequential(torch.nn.Linear(100, 50)), dtype=torch.qint8
    )
    assert state_bytes(old)["weights"] == 5000


def test_phases_hold_the_highest_moment_of_each():
    peak = predict_peak(TINY, 4, 16)
    assert list(peak.phases) == ["forward pass", "backward pass", "optimizer step"]
    assert max(sum(terms.values()) for terms in peak.phases.values()) == peak.total
    assert peak.terms in peak.phases.values()
