"""Memory: predictions against the profiler, a pretended GPU, and what a notebook keeps alive."""

import copy
import functools
import gc
import sys
import weakref

from helpers.core.processes import process_memory
from helpers.core.tensors import GIB, MIB, nbytes
from helpers.lessons import free_memory, memory, training_step
from helpers.lessons.fake_gpu import FakeGPU
from helpers.lessons.memory import largest_batch, measure_peak, predict_peak
from helpers.lessons.training_step import Step
from helpers.recipes import training_memory

import pytest
import torch
from torchao.quantization import Int8WeightOnlyConfig, quantize_
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
)

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 100}
TINY = BertConfig(intermediate_size=64, max_position_embeddings=64, **SIZES)
LONG = BertConfig(intermediate_size=64, **SIZES)
SHALLOW = BertConfig(num_hidden_layers=2)


def measured(config, batch, length, **options):
    """Without oneDNN, whose buffers for 16-bit matrix products differ by processor."""
    step = Step(config, batch, length, **options)
    with torch.backends.mkldnn.flags(enabled=False):
        return measure_peak(step.run, step.model, step.optimizer, step.inputs).allocated


def agree(config, batch, length, **options):
    """Assert that a step takes what was predicted, to half a percent."""
    found = measured(config, batch, length, **options)
    predicted = predict_peak(config, batch, length, **options).total
    assert predicted == pytest.approx(found, rel=0.005)


def batch_of(batch, length, device="cpu"):
    ids = torch.ones(batch, length, dtype=torch.long, device=device)
    mask = torch.ones_like(ids)
    mask[0, -1] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.zeros_like(ids[:, 0])}


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
        {"freeze": 0},
        {"freeze": 1, "checkpointing": True},
        {"freeze": "body"},
        {"lora": 4},
        {"lora": 4, "dtype": "bfloat16", "checkpointing": True},
        {"head": "masked-lm"},
    ],
    ids=str,
)
def test_every_lever_is_predicted_as_measured(options):
    agree(TINY, 5, 33, **options)


@pytest.mark.parametrize("length", [40, 200, 512])
def test_the_hidden_buffers_of_the_cpus_fused_attention_are_counted(length):
    config = BertConfig(**LONG.to_dict() | {"attention_probs_dropout_prob": 0.0})
    for options in ({}, {"mode": "inference", "dtype": "bfloat16"}):
        agree(config, 2, length, **options)


def test_lora_over_16_bit_weights_keeps_float32_copies_of_its_inputs(monkeypatch):
    """So it can take more than training everything in 16 bit; with adapters in 16 bit, less."""
    half = {"dtype": "bfloat16"}
    whole, lora = (measured(TINY, 8, 60, **half | lever) for lever in ({}, {"lora": 4}))
    adapters = functools.partial(training_memory.get_peft_model, autocast_adapter_dtype=False)
    monkeypatch.setattr(training_memory, "get_peft_model", adapters)
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


def test_the_predicted_largest_batch_is_the_true_one_within_one():
    gib = 2 * MIB / GIB
    best = largest_batch(TINY, 40, gib, margin=0)
    assert best > 2
    assert measured(TINY, best - 1, 40) <= gib * GIB < measured(TINY, best + 2, 40)
    assert largest_batch(TINY, 40, gib / 1000, margin=0) == 0
    assert largest_batch(TINY, 40, gib, margin=0.3) < best


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"batch": 0}, "is not a step"),
        ({"length": 65}, "at most 64"),
        ({"accumulate": -2}, "is not a step"),
        ({"mode": "train"}, "is not a step"),
        ({"freeze": 3}, "0 to 2 layers"),
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
    usual, state = predict_peak(TINY, 3, 9), torch.get_rng_state()
    assert predict_peak(TINY, 3, 9) is usual  # answers are remembered
    monkeypatch.setattr(memory, "_predicted", {})
    with around():
        assert predict_peak(TINY, 3, 9) == usual
    assert torch.equal(torch.get_rng_state(), state)
    refused = pytest.raises(ValueError, match="mixed_precision=True")
    with refused, torch.autocast("cpu", torch.bfloat16):
        predict_peak(TINY, 3, 9)


# --- The model of a GPU ---


def test_a_gpu_keeps_no_square_of_the_length_but_the_cpu_does():
    growth = {}
    for device in ("cpu", "cuda"):
        options = {"device": device, "padded": False}
        short, long = (predict_peak(LONG, 4, length, **options) for length in (256, 512))
        growth[device] = long.terms["activations"] / short.terms["activations"]
    assert growth["cuda"] < 2.5 < 3 < growth["cpu"]


def test_a_gpus_dropout_keeps_a_byte_and_its_optimizer_a_copy_of_the_weights():
    config = BertConfig(**LONG.to_dict() | {"attention_probs_dropout_prob": 0.0})
    none = BertConfig(**config.to_dict() | {"hidden_dropout_prob": 0.0})
    numbers = (1 + 2 * config.num_hidden_layers) * 8 * 512 * config.hidden_size
    masks = {}
    for device in ("cpu", "cuda"):
        options = {"device": device, "optimizer": "sgd"}
        dropping, plain = (predict_peak(c, 8, 512, **options).allocated for c in (config, none))
        masks[device] = (dropping - plain) / numbers
    # A GPU keeps a mask of a byte, where the CPU keeps a float mask, and the output of dropout.
    assert 2 < masks["cpu"] - masks["cuda"] < 4
    peak = predict_peak(SHALLOW, 1, 16, device="cuda")
    assert "optimizer step" in peak.moment
    assert peak.terms["optimizer"] == pytest.approx(3 * peak.terms["weights"], rel=0.01)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_checkpointing_on_a_gpu_recomputes_with_the_gpus_kernels(checkpointing):
    options = {"checkpointing": checkpointing, "lora": 2}
    peak = predict_peak(LONG, 4, 500, device="cuda", **options)
    assert peak.allocated < predict_peak(LONG, 4, 500, **options).allocated


def test_the_terms_of_a_peak_add_up_in_each_phase():
    peak = predict_peak(TINY, 4, 16, device="cuda")
    assert peak.total == sum(peak.terms.values())
    assert peak.total - peak.allocated == peak.terms["context"] + peak.terms["allocator"]
    assert list(peak.phases) == ["forward pass", "backward pass", "optimizer step"]
    assert max(sum(terms.values()) for terms in peak.phases.values()) == peak.total
    assert peak.terms in peak.phases.values()


def test_the_timeline_of_a_step_rises_to_the_peaks_of_the_prediction():
    steps = memory.timeline(SHALLOW, 2, 32)
    peak = predict_peak(SHALLOW, 2, 32, device="cuda")
    highest = steps.sum(axis=1).groupby(level=0).max()
    for phase, terms in peak.phases.items():
        tensors = sum(terms.get(name, 0) for name in memory.ORDER)
        assert 0.98 * tensors <= highest[phase] <= tensors
    assert steps["weights"].nunique() == 1
    assert steps["activations"].iloc[-1] == steps["gradients"].iloc[-1] == 0


# --- FakeGPU ---


def test_a_pretended_gpu_runs_out_and_a_smaller_batch_is_the_cure():
    before = process_memory()
    with FakeGPU(4, pretend=True) as gpu:
        four = BertConfig(num_hidden_layers=4)
        model = BertForSequenceClassification(four).to(gpu.device).train()
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


def test_the_pretended_gpu_agrees_with_the_prediction():
    peak = predict_peak(LONG, 8, 512, device="cuda")
    for share, fits in ((1.01, True), (0.99, False)):
        capacity = peak.total + (share - 1) * peak.allocated
        with FakeGPU(capacity / GIB, pretend=True) as gpu:
            step = Step(LONG, 8, 512)
            if fits:
                step.run()
                assert gpu.peak == pytest.approx(peak.total, rel=0.001)
            else:
                with pytest.raises(torch.OutOfMemoryError):
                    step.run()


def test_a_model_has_to_be_built_inside(tmp_path):
    outside, ids = BertModel(TINY), torch.ones(1, 4, dtype=torch.long)
    outside.save_pretrained(tmp_path)
    with FakeGPU(1, pretend=True) as gpu:
        for model in (outside, BertModel.from_pretrained(tmp_path).to(gpu.device)):
            with pytest.raises(RuntimeError, match=r"or read from a file.*from_config"):
                model(ids)
        built = BertModel._from_config(TINY).half()
        assert built(ids).pooler_output.dtype == torch.float16
        quantize_(built, Int8WeightOnlyConfig())
        assert copy.deepcopy(built)(ids).pooler_output.shape == (1, 32)


def test_errors_and_blocks_in_blocks_leave_nothing_behind():
    gpu = FakeGPU(1, pretend=True)
    with pytest.raises(ZeroDivisionError), gpu:
        1 / 0  # noqa: B018
    assert type(torch.ones(2)) is torch.Tensor
    with gpu, FakeGPU(2, pretend=True) as other:
        kept = torch.ones(1000)
        assert (gpu.allocated, other.allocated) == (0, 4096)
    assert kept.shape == (1000,)


def test_a_measurement_that_would_be_wrong_is_refused():
    with FakeGPU(1, pretend=True), pytest.raises(RuntimeError, match=r"read gpu\.allocated"):
        measure_peak(lambda: torch.ones(9))
    with pytest.raises(RuntimeError, match="a profiler is running"):
        measure_peak(lambda: measure_peak(lambda: torch.ones(9)))
    assert measure_peak(lambda: torch.ones(1000)).allocated == 4000


def test_with_cuda_the_real_gpu_is_held_to_the_size(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (70 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda: 0.5)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", calls.append)
    with FakeGPU(8) as gpu:
        assert (gpu.device, gpu.pretend) == ("cuda", False)
    outside = memory.CUDA_CONTEXT + memory.CUBLAS_WORKSPACE
    assert calls == [pytest.approx((8 * GIB - outside) / (80 * GIB)), 0.5]


# --- Reported cases ---


def fails_with_a_big_tensor(references):
    big = torch.ones(1000)
    references.append(weakref.ref(big))
    raise RuntimeError("interrupted")


@pytest.mark.parametrize("ring", [False, True])
def test_case_14_an_error_keeps_the_memory_until_it_is_forgotten(ring):
    references = []
    try:
        fails_with_a_big_tensor(references)
    except RuntimeError as error:
        if ring:  # `raise error from error`
            error.__cause__ = error
        sys.last_value = sys.last_exc = error  # as a prompt does
        sys.last_traceback = error.__traceback__
    gc.collect()
    assert references[0]() is not None
    free_memory.free_memory()
    assert references[0]() is None
    assert not hasattr(sys, "last_value")


@pytest.mark.slow
def test_case_14_in_ipython_also_out_and_underscore(run_python):
    code = r"""
    import helpers, gc
    from helpers.lessons import free_memory
    from IPython.core.interactiveshell import InteractiveShell
    shell = InteractiveShell.instance()
    shell.run_cell("import torch, weakref; refs = []")
    cell = "shown = torch.ones(1000); refs.append(weakref.ref(shown)); shown"
    shell.run_cell(cell, store_history=True)
    shell.run_cell("del shown")
    cell = "def f():\n big = torch.ones(1000); refs.append(weakref.ref(big)); 1 / 0\nf()"
    shell.run_cell(cell, store_history=True)
    shell.run_cell("w = torch.ones(50); kept = {'model': torch.nn.Linear(3, 4)}")
    gc.collect()
    refs = shell.user_ns["refs"]
    assert [ref() is not None for ref in refs] == [True, True]
    held = free_memory.free_memory()
    assert [ref() for ref in refs] == [None, None]
    assert list(held.items()) == [("w", 200), ("kept", 64)], held
    """
    run_python(code)


class Raises(dict):
    def items(self):
        raise RuntimeError("not to be looked into")


def test_free_memory_names_who_holds_what_and_stumbles_over_nothing(monkeypatch):
    model = torch.nn.Linear(4, 6)
    with FakeGPU(1, pretend=True):
        fake = torch.nn.Linear(4, 6)
    names = {
        "held_fake": fake,
        "held_output": model(torch.ones(10, 4)),
        "held_optimizer": torch.optim.SGD(model.parameters()),
        "held_odd": Raises(a=1),
        "_held": model,
        "held_nothing": torch.empty(9, device="meta"),
    }
    for name, thing in names.items():
        monkeypatch.setattr(sys.modules["__main__"], name, thing, raising=False)
    held = free_memory.free_memory()
    found = [(name, size) for name, size in held.items() if "held" in name]
    assert found == [("held_output", 240), ("held_optimizer", 120)]


def test_case_16_the_second_model_fits_when_the_first_is_gone():
    config = BertConfig(num_hidden_layers=8)
    with FakeGPU(0.8, pretend=True):
        first = BertForSequenceClassification(config)
        with pytest.raises(torch.OutOfMemoryError):
            BertForSequenceClassification(config)
        del first
        gc.collect()
        BertForSequenceClassification(config)


def test_case_17_what_tensors_pytorch_and_the_process_take_are_three_numbers(monkeypatch):
    for name, value in {
        "reset_peak_memory_stats": None,
        "max_memory_allocated": 7,
        "max_memory_reserved": 9,
        "mem_get_info": (60, 80),
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert measure_peak(lambda: None, device="cuda") == memory.Measured(7, 9, 20)


def test_case_18_verdicts_and_the_levers_in_order():
    base = predict_peak("bert-base", 4, 200, device="cuda")
    assert base.verdict(4) == "fits"
    assert base.verdict(base.total / GIB * 1.05) == "tight"
    assert base.verdict(2) == "does not fit"
    assert predict_peak("bert-large", 4, 512, device="cuda").verdict(12) == "fits"
    options, peaks = {"batch": 32, "length": 512, "device": "cuda", "optimizer": "sgd"}, []
    levers = {"length": 256}, {"batch": 8}, {"checkpointing": True}, {"dtype": "bfloat16"}
    for lever in ({}, *levers):
        options |= lever
        peaks.append(predict_peak(SHALLOW, **options))
    assert peaks[0].verdict(2) == "does not fit"
    assert peaks[-1].verdict(1) == "fits"
    totals = [peak.total for peak in peaks]
    assert totals == sorted(set(totals), reverse=True)


# BERT-base with two classes, in float32
WEIGHTS, HEAD, WORDS = 4 * 109_483_778, 4 * 2 * 769, 4 * 30522 * 768


@pytest.mark.parametrize(
    ("options", "gradients", "optimizer"),
    [
        ({}, WEIGHTS, 2 * WEIGHTS + 2 * WORDS),  # the step needs two tensors of the largest size
        ({"optimizer": "sgd"}, WEIGHTS - WORDS, 0),  # the last gradient is still being made
        ({"freeze": "body"}, 0, 2 * HEAD),  # the peak comes before there is a gradient
        ({"mode": "inference"}, 0, 0),
    ],
    ids=str,
)
def test_case_19_every_term_of_base_is_stated(options, gradients, optimizer):
    terms = predict_peak("bert-base", 1, 8, **options).terms
    assert terms["weights"] == pytest.approx(WEIGHTS, rel=1e-4)
    assert terms.get("gradients", 0) == pytest.approx(gradients, rel=0.01)
    assert terms.get("optimizer", 0) == pytest.approx(optimizer, rel=0.01)


def frozen_below(use_reentrant):
    """A step with checkpointing as it was before transformers hid the trap."""
    step = Step(TINY, 2, 8, freeze=1)
    step.model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    step.model.disable_input_require_grads()
    return step


@pytest.mark.filterwarnings("ignore")
def test_case_21_reentrant_checkpointing_over_frozen_layers_trains_nothing():
    frozen_below(use_reentrant=False).run()
    step = frozen_below(use_reentrant=True)
    step.model(**step.inputs).loss.backward()
    with pytest.raises(RuntimeError, match="no gradient for"):
        training_step.check_gradients(step.model)
    with pytest.raises(RuntimeError, match="any parameter"):
        training_step.check_gradients(step.model.requires_grad_(False))


@pytest.mark.filterwarnings("ignore")
def test_case_22_no_saving_is_reported_for_a_training_that_does_not_happen():
    step = frozen_below(use_reentrant=True)
    with pytest.raises(RuntimeError, match="no gradient for"):
        measure_peak(step.run, step.model, step.optimizer)


def test_case_24_what_freezing_saves_and_that_frozen_layers_stop_dropping_out():
    frozen, whole = (predict_peak(TINY, 2, 8, freeze=part).phases for part in ("body", None))
    for terms in (frozen["optimizer step"], whole["optimizer step"]):
        assert terms["weights"] == whole["forward pass"]["weights"]
    assert frozen["optimizer step"]["gradients"] == 4 * 2 * 33
    buffers = 2 * 64 * 8  # numbers of positions and segments
    assert whole["optimizer step"]["gradients"] == whole["forward pass"]["weights"] - buffers
    body, ids = Step(TINY, 2, 8, freeze="body").model.bert, torch.ones(1, 6, dtype=torch.long)
    assert torch.equal(body(ids).pooler_output, body(ids).pooler_output)
    loaded = BertForSequenceClassification(TINY)
    assert all(p.requires_grad for p in loaded.parameters())  # nothing is frozen by being loaded


def test_case_25_the_file_decides_the_dtype_unless_it_is_stated(tmp_path):
    BertModel(TINY).half().save_pretrained(tmp_path)
    assert BertModel.from_pretrained(tmp_path).dtype == torch.float16
    stated = BertModel.from_pretrained(tmp_path, dtype=torch.float32)
    assert stated.dtype == torch.float32
    options = {"mode": "inference"}
    halves, floats = (
        predict_peak(TINY, 1, 4, dtype=dtype, **options).terms["weights"]
        for dtype in ("float16", "float32")
    )
    assert floats - halves == 2 * BertForSequenceClassification(TINY).num_parameters()
    load = functools.partial(BertModel.from_pretrained, tmp_path, dtype=torch.float32)
    assert measure_peak(load).allocated < 2.2 * sum(map(nbytes, stated.parameters()))
