"""ONNX files of tiny BERT models.

What export writes, what a session takes, and the mistakes that raise no error.
"""

import collections
import gc
import importlib
import shutil
import subprocess
import sys
import textwrap
import weakref

from helpers.core.quiet import quiet
from helpers.lessons import onnx_export, onnx_inference
from helpers.models import batching

import numpy as np
import onnx as onnx_package
import peft
import pytest
import torch
from transformers import (
    BatchEncoding,
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

CONFIG = BertConfig(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=200, num_labels=3
)  # fmt: skip


def new(kind=BertForSequenceClassification, config=CONFIG):
    """A tiny model whose outputs depend on all that goes in (the usual random weights are too small to show it)."""
    torch.manual_seed(0)
    model = kind(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4) if weight.ndim == 2 else None
    return model


@pytest.fixture(scope="module")
def model():
    return new()


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    return onnx_export.export(model, tmp_path_factory.mktemp("onnx") / "model.onnx")


@pytest.fixture(scope="module")
def session(exported):
    return onnx_inference.session(exported, threads=1)


def example(batch=2, length=9):
    return {
        name: torch.tensor(value)
        for name, value in batching.two_segments(batch, length, 200, rng()).items()
    }


def rng():
    return np.random.default_rng(0)


def operators(path):
    return collections.Counter(node.op_type for node in onnx_package.load(path).graph.node)


def test_export_says_what_it_wrote(exported):
    assert exported.files == (exported.path,)
    assert exported.bytes == exported.path.stat().st_size
    assert (exported.inputs, exported.outputs) == (onnx_export.NAMES, ("logits",))
    graph = onnx_package.load(exported.path).graph
    assert [value.name for value in graph.input] == list(onnx_export.NAMES)
    assert [axis.dim_param for axis in graph.input[0].type.tensor_type.shape.dim] == [
        "batch",
        "length",
    ]


def test_attention_stays_one_operator_whatever_the_model_used(tmp_path):
    eager = BertForSequenceClassification(CONFIG)
    eager.set_attn_implementation("eager")
    written = onnx_export.export(eager, tmp_path / "new.onnx")
    assert operators(written.path)["Attention"] == CONFIG.num_hidden_layers
    assert eager.config._attn_implementation == "eager"


def test_an_encoder_gives_hidden_states_and_pooler_and_nothing_else(tmp_path):
    config = BertConfig(**CONFIG.to_dict() | {"output_hidden_states": True})
    encoder = new(BertModel, config)
    written = onnx_export.export(encoder, tmp_path / "encoder.onnx")
    assert written.outputs == ("last_hidden_state", "pooler_output")
    opened = onnx_inference.session(written, threads=1)
    assert [output.name for output in opened.get_outputs()] == list(written.outputs)
    assert onnx_inference.run(opened, example()).shape == (2, 9, 32)
    found = onnx_export.parity(encoder, opened, batches=(2,), lengths=(7,))
    assert found.ok
    assert np.isnan(found.agreement)
    assert "labels" not in str(found)


def test_export_keeps_hold_of_no_tensor(tmp_path):
    fresh = new()
    tensors = [weakref.ref(parameter) for parameter in fresh.parameters()]
    storages = [weakref.ref(parameter.untyped_storage()) for parameter in fresh.parameters()]
    onnx_export.export(fresh, tmp_path / "model.onnx")
    assert all(reference() is not None for reference in tensors + storages)
    del fresh
    gc.collect()
    assert not any(reference() is not None for reference in tensors + storages)


def test_export_is_silent_and_leaves_modes_alone(tmp_path):
    code = """
        import sys
        from helpers.lessons import onnx_export, onnx_inference
        from transformers import BertConfig, BertForSequenceClassification
        config = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
        model = BertForSequenceClassification(config).train()
        model.bert.eval()
        onnx_inference.session(onnx_export.export(model, sys.argv[1]))
        assert model.training and not model.bert.training and not model.bert.encoder.training
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "model.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


def test_case_44_a_swap_shows_only_with_padding_and_two_segments(model, tmp_path, session):
    """Exported by position in the tokenizer's order (ids, segments, mask), the two are exchanged without an error."""
    values = example()
    order = ("input_ids", "token_type_ids", "attention_mask")
    with quiet(stdout=True):
        args = tuple(values[name] for name in order)
        shapes = tuple({0: "batch", 1: "length"} for _ in order)
        torch.onnx.export(
            model, args, tmp_path / "swapped.onnx", input_names=order, dynamic_shapes=shapes, opset_version=23,
            verbose=False,
        )  # fmt: skip
    swapped = onnx_inference.session(tmp_path / "swapped.onnx", threads=1)
    with torch.no_grad():
        right = model(**values).logits.numpy()
    assert np.abs(onnx_inference.run(swapped, values) - right).max() > 100 * onnx_export.TOLERANCE
    assert not onnx_export.parity(model, swapped, batches=(2,), lengths=(64,)).ok
    ones = {name: torch.ones(2, 9, dtype=torch.int64) for name in onnx_export.NAMES}
    with torch.no_grad():
        assert (
            np.abs(onnx_inference.run(swapped, ones) - model(**ones).logits.numpy()).max()
            < onnx_export.TOLERANCE
        )
    assert onnx_export.parity(model, session).ok


def test_case_46_all_shapes_run_and_agree(model, session):
    found = onnx_export.parity(model, session)
    assert set(zip(found.table["batch"], found.table["length"], strict=True)) == {
        (batch, length) for batch in (1, 2, 5) for length in (1, 7, 512)
    }
    assert found.difference < onnx_export.TOLERANCE
    assert found.agreement == 1


@pytest.mark.parametrize("shape", [(1, 9), (2, 7), (0, 9), (9,), (2, 9, 1)])
def test_case_46_an_example_that_would_fix_an_axis_is_refused(model, tmp_path, shape):
    with pytest.raises(ValueError, match="at least 2 texts of 8 tokens"):
        onnx_export.export(
            model, tmp_path / "model.onnx", {"input_ids": torch.ones(shape, dtype=torch.int64)}
        )
    assert not list(tmp_path.iterdir())


def test_the_examples_tensors_may_be_one_and_square(model, tmp_path):
    """Two names for one tensor, and as many texts as tokens.

    Neither may join inputs or axes in the file.
    """
    same = torch.ones(8, 8, dtype=torch.int64)
    written = onnx_export.export(
        model, tmp_path / "model.onnx", dict.fromkeys(onnx_export.NAMES, same)
    )
    assert onnx_export.parity(model, onnx_inference.session(written), lengths=(7,)).ok


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"input_idss": torch.ones(2, 8)}, r"names \['input_idss'\]"),
        ({"attention_mask": torch.ones(2, 8, dtype=torch.int64)}, "needs input_ids"),
        (
            {"input_ids": torch.ones(2, 8, dtype=torch.int64), "attention_mask": torch.ones(2, 9)},
            "the example's shape",
        ),
    ],
)
def test_bad_requests_to_export(model, tmp_path, wrong, error):
    with pytest.raises(ValueError, match=error):
        onnx_export.export(model, tmp_path / "model.onnx", wrong)


WRAPPERS = {
    "PeftModel": lambda model: peft.get_peft_model(
        model, peft.LoraConfig(target_modules=["query"])
    ),
    # Its forward has names of its own, segment ids are not among them.
    "PeftModelForSequenceClassification": lambda model: peft.get_peft_model(
        model, peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"])
    ),
    "OptimizedModule": torch.compile,
    "DataParallel": torch.nn.DataParallel,
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_around_a_model_is_refused(tmp_path, name):
    words = rf"^{name} is not a model of transformers.*merge_and_unload"
    with pytest.raises(TypeError, match=words):
        onnx_export.export(WRAPPERS[name](new()), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_case_47_large_weights_get_a_second_file_and_move_together(model, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_export, "SINGLE_FILE", 1000)
    (tmp_path / "there").mkdir()
    written = onnx_export.export(model, tmp_path / "model.onnx")
    assert [file.name for file in written.files] == ["model.onnx", "model.onnx.data"]
    assert written.bytes == sum(file.stat().st_size for file in tmp_path.glob("model*"))
    assert written.files[1].stat().st_size > 0.9 * sum(
        weight.nbytes for weight in model.parameters()
    )
    shutil.copy(written.path, tmp_path / "there")
    with pytest.raises(FileNotFoundError, match="in a second file that is not beside it"):
        onnx_inference.session(tmp_path / "there" / "model.onnx")
    shutil.copy(written.files[1], tmp_path / "there")
    assert onnx_export.parity(
        model, onnx_inference.session(tmp_path / "there" / "model.onnx"), lengths=(7,)
    ).ok


def test_case_47_a_small_model_is_one_file_and_an_old_second_one_goes(model, tmp_path):
    (tmp_path / "model.onnx.data").write_bytes(b"of an earlier export")
    assert onnx_export.export(model, tmp_path / "model.onnx").files == (tmp_path / "model.onnx",)
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


def test_case_49_a_missing_exporter_package_is_named(model, tmp_path, monkeypatch):
    real = importlib.import_module

    def broken(name, *rest):
        if name == "onnxscript":
            raise ImportError("cannot import name 'ir' from 'onnxscript'")
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(
        ImportError,
        match=r"through the package onnxscript; installed here: \d.*--upgrade onnxscript",
    ):
        onnx_export.export(model, tmp_path / "model.onnx")


def test_case_49_a_user_without_a_name_can_export(model, tmp_path, monkeypatch):
    pwd = pytest.importorskip("pwd")

    def unknown(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("USER", "LOGNAME", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    assert onnx_export.export(model, tmp_path / "model.onnx").bytes > 0


@pytest.mark.parametrize("kind", [list, np.int32, np.int64, np.bool_, "tensor", BatchEncoding])
def test_case_50_whole_numbers_of_any_kind(session, kind):
    values, expected = example(), onnx_inference.run(session, example())
    if kind is np.bool_:
        values["attention_mask"] = values["attention_mask"].numpy().astype(bool)
    elif kind is BatchEncoding:
        values = BatchEncoding(values)
    elif kind != "tensor":
        values = {
            n: v.tolist() if kind is list else v.numpy().astype(kind) for n, v in values.items()
        }
    made = onnx_inference.feed(session, values)
    assert {array.dtype for array in made.values()} == {np.dtype(np.int64)}
    assert np.array_equal(onnx_inference.run(session, values), expected)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda v: v["input_ids"].float(), TypeError, "input_ids holds float32"),
        (lambda v: v["input_ids"].tolist()[0], ValueError, "give a batch"),
        (lambda v: v["input_ids"][:, :4], ValueError, "shapes differ"),
        (lambda v: [["a", "b"], ["c", "d"]], TypeError, "takes integers"),
        (lambda v: v["input_ids"][:0], ValueError, r"shape \(0, 9\)"),
        (lambda v: -v["input_ids"], ValueError, "another row of the table"),
    ],
)
def test_case_50_what_cannot_be_ids_is_refused(session, change, error, text):
    values = example()
    with pytest.raises(error, match=text):
        onnx_inference.feed(session, values | {"input_ids": change(values)})


def test_case_50_a_file_of_32_bit_inputs_gets_them(tmp_path):
    helper, kind = onnx_package.helper, onnx_package.TensorProto
    given = helper.make_tensor_value_info("input_ids", kind.INT32, ["batch", "length"])
    out = helper.make_tensor_value_info("logits", kind.FLOAT, ["batch", "length"])
    graph = helper.make_graph(
        [helper.make_node("Cast", ["input_ids"], ["logits"], to=kind.FLOAT)], "g", [given], [out]
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx_package.save(made, tmp_path / "model.onnx")
    assert onnx_inference.run(
        onnx_inference.session(tmp_path / "model.onnx"), {"input_ids": [[1, 2]]}
    ).tolist() == [[1.0, 2.0]]
    with pytest.raises(ValueError, match="4294967297, which would be another row"):
        onnx_inference.run(
            onnx_inference.session(tmp_path / "model.onnx"), {"input_ids": [[1, 2**32 + 1]]}
        )


def test_feed_lists_what_it_dropped_and_added(session):
    values = {name: value for name, value in example().items() if name != "token_type_ids"}
    made = onnx_inference.feed(session, values | {"special_tokens_mask": [[0]]})
    assert (made.dropped, made.added) == (("special_tokens_mask",), ("token_type_ids",))
    assert made["token_type_ids"].sum() == 0
    assert list(made) == list(onnx_export.NAMES)
    whole = onnx_inference.feed(session, example())
    assert (whole.dropped, whole.added) == ((), ())


@pytest.mark.parametrize("name", ["input_ids", "attention_mask"])
def test_feed_does_not_guess_ids_or_masks(session, name):
    values = example()
    del values[name]
    with pytest.raises(ValueError, match=f"the file needs {name}"):
        onnx_inference.feed(session, values)


def test_case_52_a_model_in_training_mode_is_compared_without_dropout(session):
    training = new().train()
    found = onnx_export.parity(training, session, lengths=(7,))
    assert found.ok
    assert found.mode == "train"
    assert "was in training mode" in str(found)
    assert training.training
    assert all(module.training for module in training.modules())


def test_case_53_parity_states_its_tolerance_and_counts_labels(model, session):
    found = onnx_export.parity(model, session, lengths=(7,))
    assert found.mode == "eval"
    assert "1e-04 is what rounding" in str(found)
    assert "at least 100.0%" in str(found)
    other = new()
    with torch.no_grad():
        other.classifier.weight.mul_(-1)
    changed = onnx_export.parity(other, session, lengths=(7, 64))
    assert not changed.ok
    assert changed.agreement < 1
    assert changed.difference > onnx_export.TOLERANCE


@pytest.mark.parametrize("kind", [BertForSequenceClassification, BertModel])
def test_parity_with_the_file_of_another_model(session, kind):
    """Two labels instead of three, and outputs of another number."""
    other = new(kind, BertConfig(**CONFIG.to_dict() | {"id2label": {0: "no", 1: "yes"}}))
    with pytest.raises(ValueError, match="it was made of another model"):
        onnx_export.parity(other, session, lengths=(7,))


def test_case_55_threads_are_what_was_asked_for(exported):
    for threads in (1, 2):
        assert (
            onnx_inference.session(exported, threads=threads)
            .get_session_options()
            .intra_op_num_threads
            == threads
        )
    assert (
        onnx_inference.session(exported).get_session_options().intra_op_num_threads
        == onnx_inference.machine.usable_cpus()
    )


def test_case_56_threads_do_not_spin_unless_asked(exported):
    key = "session.intra_op.allow_spinning"
    assert (
        onnx_inference.session(exported).get_session_options().get_session_config_entry(key) == "0"
    )
    assert (
        onnx_inference.session(exported, spinning=True)
        .get_session_options()
        .get_session_config_entry(key)
        == "1"
    )


@pytest.mark.parametrize(
    "providers", [["CUDAExecutionProvider", "CPUExecutionProvider"], ["CUDAExecutionProvider"]]
)
def test_case_58_a_provider_that_is_not_in_use_is_an_error(
    exported, monkeypatch, providers, recwarn
):
    import onnxruntime

    if "CUDAExecutionProvider" in onnx_inference.session(exported).get_providers():
        pytest.skip("this build has CUDA")
    with pytest.raises(
        onnx_inference.ProviderError,
        match=r"CUDAExecutionProvider was asked for and is not in use \(this",
    ):
        onnx_inference.session(exported, providers=providers)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    with pytest.raises(
        onnx_inference.ProviderError, match="its libraries do not start here"
    ):  # listed is not started
        onnx_inference.session(exported, providers=providers)
    assert not recwarn.list


def test_a_provider_may_be_one_name(exported, capfd):
    assert onnx_inference.session(exported, providers="CPUExecutionProvider").get_providers() == [
        "CPUExecutionProvider"
    ]
    for providers in ("cpu", ["cpu"]):
        with pytest.raises(
            onnx_inference.ProviderError, match=r"^cpu was asked for and is not in use"
        ):
            onnx_inference.session(exported, providers=providers)
    assert capfd.readouterr() == ("", "")


def test_roberta_has_one_segment_and_counts_positions_from_its_padding(tmp_path):
    config = RobertaConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, vocab_size=200,
        max_position_embeddings=34, type_vocab_size=1,
    )  # fmt: skip
    roberta = new(RobertaForSequenceClassification, config)
    written = onnx_export.export(roberta, tmp_path / "model.onnx")
    assert written.inputs == onnx_export.NAMES
    found = onnx_export.parity(roberta, onnx_inference.session(written))
    assert found.ok
    assert found.table["length"].max() == 32


def test_case_78_distilbert_gets_no_segment_ids(tmp_path):
    config = DistilBertConfig(dim=32, n_layers=2, n_heads=2, hidden_dim=64, vocab_size=200)
    distil = new(DistilBertForSequenceClassification, config)
    written = onnx_export.export(distil, tmp_path / "distil.onnx", example())
    assert written.inputs == ("input_ids", "attention_mask")
    opened = onnx_inference.session(written)
    assert onnx_inference.feed(opened, example()).dropped == ("token_type_ids",)
    assert onnx_export.parity(distil, opened).ok


def test_predict_keeps_the_order_and_takes_pairs(model, session):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = {
        word: number
        for number, word in enumerate(["[PAD]", "[CLS]", "[SEP]", "[UNK]", *"abcdefgh"])
    }
    core = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="[PAD]")
    texts = ["a b c d e f g", "h", "a b", "c " * 300, "d e f"]
    got = onnx_inference.predict(session, tokenizer, texts, max_tokens=20)
    assert got.shape == (5, 3)
    assert got.dtype == np.float32
    for text, row in zip(texts, got, strict=True):
        inputs = tokenizer(text, truncation=True, max_length=128, return_tensors="pt")
        with torch.no_grad():
            assert np.abs(model(**inputs).logits[0].numpy() - row).max() < onnx_export.TOLERANCE
    assert onnx_inference.predict(session, tokenizer, [("a b", "c"), ("d", "e f g")]).shape == (
        2,
        3,
    )
    assert np.array_equal(
        onnx_inference.predict(session, tokenizer, texts, max_tokens=20, workers=2), got
    )


def test_predict_is_for_classifiers_of_whole_texts(tmp_path):
    """Token by token, batches have other lengths.

    One alone would come out as if nothing were wrong.
    """
    written = onnx_export.export(new(BertForTokenClassification), tmp_path / "model.onnx")
    with pytest.raises(
        ValueError,
        match=r"logits has shape \['batch', 'length', 3\]: predict classifies whole texts",
    ):
        onnx_inference.predict(onnx_inference.session(written), None, ["a b"])


def test_a_file_runs_where_torch_cannot_be_imported(exported):
    code = """
        import sys
        sys.modules["torch"] = None  # an import of it now fails
        from helpers.lessons import onnx_inference
        inputs = {"input_ids": [[1, 2, 3]], "attention_mask": [[1, 1, 1]]}
        print(onnx_inference.run(onnx_inference.session(sys.argv[1]), inputs).shape)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(exported.path)]
    assert (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        == "(1, 3)"
    )


def test_two_segments_are_padded_and_two():
    made = batching.two_segments(5, 7, 200, rng())
    assert (made["attention_mask"].sum(1) < 7).all()
    assert (made["attention_mask"][:, 0] == 1).all()
    assert (made["token_type_ids"].sum(1) > 0).all()
    assert (made["token_type_ids"] <= made["attention_mask"]).all()
    assert ((made["input_ids"] > 0) == made["attention_mask"].astype(bool)).all()


def test_nan_is_no_parity(model, session, monkeypatch):
    run = type(session).run

    class Broken:
        get_inputs, get_outputs = session.get_inputs, session.get_outputs

        def run(self, *args):
            return [
                value * (float("nan") if value.shape[0] == 2 else 1)
                for value in run(session, *args)
            ]

    found = onnx_export.parity(model, Broken())
    assert np.isnan(found.difference)
    assert not found.ok


def test_parity_looks_at_every_output(tmp_path):
    encoder = new(BertModel)
    exported = onnx_export.export(encoder, tmp_path / "encoder.onnx")
    assert onnx_export.parity(encoder, onnx_inference.session(exported)).ok
    with torch.no_grad():
        encoder.pooler.dense.weight.neg_()
    assert not onnx_export.parity(encoder, onnx_inference.session(exported)).ok


def test_padding_and_a_file_without_a_mask_do_not_go_together(model, tmp_path):
    with pytest.raises(ValueError, match="needs attention_mask"):
        onnx_export.export(
            model, tmp_path / "model.onnx", {"input_ids": torch.ones(2, 8, dtype=torch.int64)}
        )
    dynamic = [{0: "batch", 1: "length"}]
    onnx_ids = torch.ones(2, 8, dtype=torch.int64)
    torch.onnx.export(
        model, (onnx_ids,), tmp_path / "bare.onnx", dynamic_shapes=dynamic, verbose=False
    )
    bare = onnx_inference.session(tmp_path / "bare.onnx")
    full = {"input_ids": [[5, 6, 7]], "attention_mask": [[1, 1, 1]]}
    assert "attention_mask" in onnx_inference.feed(bare, full).dropped
    with pytest.raises(ValueError, match="read the padding as text"):
        onnx_inference.feed(bare, full | {"attention_mask": [[1, 1, 0]]})


def test_negative_ids_and_a_single_text_are_refused(session):
    with pytest.raises(ValueError, match="input_ids holds -1"):
        onnx_inference.run(session, {"input_ids": [[5, -1]], "attention_mask": [[1, 1]]})
    with pytest.raises(TypeError, match="give a list"):
        onnx_inference.predict(session, None, "Good film.")


def test_a_file_holds_no_path_of_the_machine_that_made_it(exported):
    assert b"site-packages" not in exported.path.read_bytes()
