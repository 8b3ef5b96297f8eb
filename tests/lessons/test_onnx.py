"""ONNX files of tiny BERT models: what is written, what it takes, mistakes that raise no error."""

import shutil

from helpers.core import machine
from helpers.core.quiet import quiet
from helpers.lessons import onnx_export, onnx_inference, quantize_onnx
from helpers.models import batching
from helpers.recipes.onnx_export import INPUTS, OLDER, OPSET, to_program

import numpy as np
import onnx
import onnxruntime
import peft
import pytest
import torch
import transformers
from transformers import BertForSequenceClassification, BertForTokenClassification, BertModel

CUDA = "CUDAExecutionProvider"
LARGE_WEIGHTS = {"initializer_range": 0.5}  # the usual ones are too small: no input matters
SIZES = {"max_position_embeddings": 512, "num_labels": 3, **LARGE_WEIGHTS}


@pytest.fixture(scope="module")
def new(tiny_model):
    def make(kind=BertForSequenceClassification, **changes):
        return tiny_model(kind, **SIZES | changes)

    return make


@pytest.fixture(scope="module")
def model(new):
    return new()


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    return onnx_export.export(model, tmp_path_factory.mktemp("onnx") / "model.onnx")


@pytest.fixture(scope="module")
def session(exported):
    return onnx_inference.session(exported, threads=1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.onnx"


def example(batch=2, length=9):
    """A padded batch of two segments, as tensors."""
    arrays = batching.two_segments(batch, length, 100, np.random.default_rng(0))
    return {name: torch.tensor(value) for name, value in arrays.items()}


def ones(*shape):
    return torch.ones(shape, dtype=torch.int64)


def off(model, session, inputs):
    """The largest difference between a session's first output and its model's."""
    with torch.no_grad():
        right = model(**inputs)[0].numpy()
    return np.abs(onnx_inference.run(session, inputs) - right).max()


def test_a_file_has_names_free_axes_and_nothing_of_this_machine(exported):
    graph = onnx.load(exported).graph
    assert [value.name for value in graph.input] == list(INPUTS)
    assert [value.name for value in graph.output] == ["logits"]
    axes = [axis.dim_param for axis in graph.input[0].type.tensor_type.shape.dim]
    assert axes == ["batch", "length"]
    assert b"site-packages" not in exported.read_bytes()


def test_attention_stays_one_operator_whatever_the_model_used(new, path):
    eager = new()
    eager.set_attn_implementation("eager")
    nodes = onnx.load(onnx_export.export(eager, path)).graph.node
    assert sum(node.op_type == "Attention" for node in nodes) == eager.config.num_hidden_layers
    assert eager.config._attn_implementation == "eager"


def test_an_encoder_gives_hidden_states_and_pooler_and_parity_looks_at_both(new, path):
    encoder = new(BertModel, output_hidden_states=True)
    opened = onnx_inference.session(onnx_export.export(encoder, path), threads=1)
    outputs = [output.name for output in opened.get_outputs()]
    assert outputs == ["last_hidden_state", "pooler_output"]
    found = onnx_export.parity(encoder, opened, lengths=(7,))
    assert found.ok
    assert np.isnan(found.agreement)
    with torch.no_grad():
        encoder.pooler.dense.weight.neg_()
    assert not onnx_export.parity(encoder, opened, lengths=(7,)).ok


@pytest.mark.slow
def test_export_is_silent_and_leaves_modes_alone(run_python, path):
    code = """
        import sys
        from helpers.exercises.tiny_models import new_classifier
        from helpers.lessons import onnx_export, onnx_inference
        model = new_classifier().train()
        model.bert.eval()
        onnx_inference.session(onnx_export.export(model, sys.argv[1]))
        assert model.training and not model.bert.training and not model.bert.encoder.training
    """
    assert run_python(code, path).stdout == ""


def test_case_44_a_swap_shows_only_with_padding_and_two_segments(model, path, session):
    """Exported by position in the tokenizer's order (ids, segments, mask), two are exchanged."""
    values = example()
    order = ("input_ids", "token_type_ids", "attention_mask")
    options = {"input_names": order, "dynamic_shapes": [{0: "batch", 1: "length"}] * 3}
    with quiet(stdout=True):
        given = tuple(values[name] for name in order)
        torch.onnx.export(model, given, path, opset_version=23, verbose=False, **options)
    swapped = onnx_inference.session(path, threads=1)
    assert off(model, swapped, values) > 100 * onnx_export.TOLERANCE
    assert not onnx_export.parity(model, swapped, batches=(2,), lengths=(64,)).ok
    assert off(model, swapped, {name: ones(2, 9) for name in INPUTS}) < onnx_export.TOLERANCE
    assert off(model, session, values) < onnx_export.TOLERANCE


def test_case_46_all_shapes_run_and_agree(model, session):
    found = onnx_export.parity(model, session, batches=(1, 2, 5), lengths=(1, 7, 512))
    assert found.difference < onnx_export.TOLERANCE
    assert found.agreement == 1


@pytest.mark.parametrize("shape", [(1, 9), (2, 7), (0, 9), (9, 1)])
def test_case_46_an_example_that_would_fix_an_axis_is_refused(model, path, shape):
    with pytest.raises(ValueError, match="at least 2 texts of 8 tokens"):
        onnx_export.export(model, path, {name: ones(*shape) for name in INPUTS})
    assert not path.exists()


def test_the_examples_tensors_may_be_one_and_square(model, path):
    """Two names for one tensor, and as many texts as tokens, join neither inputs nor axes."""
    written = onnx_export.export(model, path, dict.fromkeys(INPUTS, ones(8, 8)))
    assert onnx_export.parity(model, onnx_inference.session(written), lengths=(7,)).ok


def with_adapters(model, task=None):
    config = peft.LoraConfig(task_type=task, target_modules=["query"])
    return peft.get_peft_model(model, config)


WRAPPERS = {
    "PeftModel": with_adapters,
    # Its forward has names of its own, segment ids are not among them.
    "PeftModelForSequenceClassification": lambda model: with_adapters(model, "SEQ_CLS"),
    "OptimizedModule": torch.compile,
    "DataParallel": torch.nn.DataParallel,
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_around_a_model_is_refused(new, path, name):
    words = rf"^{name} is not a model of transformers.*merge_and_unload"
    with pytest.raises(TypeError, match=words):
        onnx_export.export(WRAPPERS[name](new()), path)
    assert not path.exists()


@pytest.fixture
def two_files(model, path, monkeypatch):
    monkeypatch.setattr(onnx_export, "SINGLE_FILE", 1000)
    return onnx_export.export(model, path), path.with_name("model.onnx.data")


def test_case_47_large_weights_get_a_second_file_and_move_together(model, path, two_files):
    written, data = two_files
    assert sorted(path.parent.iterdir()) == [written, data]
    assert data.stat().st_size > 0.9 * sum(weight.nbytes for weight in model.parameters())
    there = path.parent / "there"
    there.mkdir()
    shutil.copy(written, there)
    with pytest.raises(Exception, match=r"second file, model\.onnx\.data"):
        onnx_inference.session(there / "model.onnx")
    shutil.copy(data, there)
    assert onnx_export.parity(model, onnx_inference.session(there / "model.onnx"), lengths=(7,)).ok


def test_case_47_links_of_the_hubs_cache_are_followed(two_files, tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    for number, file in enumerate(two_files):
        file.rename(blobs / str(number))
        (snapshot / file.name).symlink_to(blobs / str(number))
    source = snapshot / "model.onnx"
    plain = onnx_inference.run(onnx_inference.session(source), example())
    quantize_onnx.onnx_dynamic(source, tmp_path / "int8.onnx")
    made = onnx_inference.run(onnx_inference.session(tmp_path / "int8.onnx"), example())
    assert np.abs(made - plain).max() < 0.5 * plain.std()


def test_a_damaged_file_says_so(exported, path):
    path.write_bytes(exported.read_bytes()[:-500])
    with pytest.raises(RuntimeError, match="no ONNX file, or its download was cut short"):
        onnx_inference.session(path)


@pytest.mark.parametrize("name", ["token_type_idss", "position_ids"])
def test_names_that_nobody_knows_are_refused(model, session, path, name):
    with pytest.raises(ValueError, match=name):
        onnx_inference.run(session, example() | {name: ones(2, 9)})
    with pytest.raises(ValueError, match=name):
        onnx_export.export(model, path, example() | {name: ones(2, 9)})
    short = example()
    short.pop("token_type_ids")
    with pytest.raises(ValueError, match=r"takes .*token_type_ids"):
        onnx_export.export(model, path, short)
    for operators in (iter(["MatMul", "Gather_"]), [], ["MatMul", "Add"]):
        with pytest.raises(ValueError, match="can become int8"):
            quantize_onnx.onnx_dynamic(session._model_path, path, operators=operators)
    assert not path.exists()


def test_a_file_that_computes_something_else_is_not_handed_over(new, path, monkeypatch):
    """Nor is it before an older opset has been tried, which some models need."""
    tried = []

    def wrong(model, example, **options):
        tried.append(options["opset"])
        other = new()
        with torch.no_grad():
            other.classifier.bias += 1
        return to_program(other, example, **options)

    monkeypatch.setattr(onnx_export, "to_program", wrong)
    with pytest.raises(RuntimeError, match="no ONNX file computes") as caught:
        onnx_export.export(new(), path)
    assert "1.0e+00" in str(caught.value.__cause__)
    assert tried == [OPSET, OLDER]
    assert not list(path.parent.iterdir())


def test_case_47_a_small_model_is_one_file_and_an_old_second_one_goes(model, path):
    path.with_name("model.onnx.data").write_bytes(b"of an earlier export")
    onnx_export.export(model, path)
    assert list(path.parent.iterdir()) == [path]


def test_case_49_a_user_without_a_name_can_export(model, path, monkeypatch):
    pwd = pytest.importorskip("pwd")

    def unknown(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("USER", "LOGNAME", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    assert onnx_export.export(model, path).exists()


@pytest.mark.parametrize("kind", ["list", "int32", "int64", "tensor"])
def test_case_50_integers_of_any_kind(session, kind):
    values = transformers.BatchEncoding(example())
    for name, value in values.items():
        if kind != "tensor":
            values[name] = value.tolist() if kind == "list" else value.numpy().astype(kind)
    made = onnx_inference.feed(session, values)
    assert {array.dtype for array in made.values()} == {np.dtype(np.int64)}
    assert np.array_equal(*(onnx_inference.run(session, given) for given in (values, example())))


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"input_ids": torch.ones(2, 9)}, TypeError, "input_ids holds float32"),
        ({"input_ids": [["a", "b"], ["c", "d"]]}, TypeError, "takes integers"),
        ({"attention_mask": ones(1, 9)}, ValueError, "shapes differ"),
        ({"input_ids": -ones(2, 9)}, ValueError, "input_ids holds -1"),
        ({"input_ids": None}, ValueError, "the file needs input_ids"),
        ({"attention_mask": None}, ValueError, "the file needs attention_mask"),
    ],
)
def test_case_50_what_would_be_guessed_is_refused(session, changes, error, text):
    values = {n: value for n, value in (example() | changes).items() if value is not None}
    with pytest.raises(error, match=text):
        onnx_inference.feed(session, values)


def test_feed_drops_what_the_file_lacks_and_adds_segments(session):
    values = {name: value for name, value in example().items() if name != "token_type_ids"}
    made = onnx_inference.feed(session, values | {"special_tokens_mask": [[0]]})
    assert list(made) == list(INPUTS)
    assert made["token_type_ids"].shape == (2, 9)
    assert not made["token_type_ids"].any()


def test_what_a_file_of_ids_alone_would_misread_is_told(model, path):
    """It has no mask, so padding would be text, and no segments, so a pair would be one text."""
    axes = [{0: "batch", 1: "length"}]
    with quiet(stdout=True):
        torch.onnx.export(model, (ones(2, 8),), path, dynamic_shapes=axes, verbose=False)
    bare = onnx_inference.session(path)
    full = {"input_ids": [[5, 6, 7]], "attention_mask": [[1, 1, 1]]}
    assert list(onnx_inference.feed(bare, full)) == ["input_ids"]
    with pytest.raises(ValueError, match="read the padding as text"):
        onnx_inference.feed(bare, full | {"attention_mask": [[1, 1, 0]]})
    with pytest.warns(UserWarning, match="both texts of a pair count as the first"):
        onnx_inference.run(bare, full | {"token_type_ids": [[0, 0, 1]]})


def test_case_52_a_model_in_training_mode_is_compared_without_dropout(new, session):
    training = new().train()
    found = onnx_export.parity(training, session, lengths=(7,))
    assert found.ok
    assert all(module.training for module in training.modules())


def test_case_53_parity_has_a_tolerance_and_counts_labels(new, session):
    other = new()
    with torch.no_grad():
        other.classifier.weight.mul_(-1)
    changed = onnx_export.parity(other, session, lengths=(7, 64))
    assert not changed.ok
    assert changed.agreement < 1
    assert changed.difference > onnx_export.TOLERANCE


@pytest.mark.parametrize("kind", [BertForSequenceClassification, BertModel])
def test_parity_with_the_file_of_another_model(new, session, kind):
    """Two labels instead of three, and outputs of another number."""
    with pytest.raises(ValueError, match="it was made of another model"):
        onnx_export.parity(new(kind, num_labels=2), session, lengths=(7,))


def test_nan_is_not_equal(model, session):
    class Broken:
        get_inputs = session.get_inputs
        get_modelmeta = session.get_modelmeta

        def run(self, names, inputs):
            found = session.run(names, inputs)
            broken = len(inputs["input_ids"]) == 2
            return [value * float("nan") for value in found] if broken else found

    found = onnx_export.parity(model, Broken())
    assert np.isnan(found.difference)
    assert not found.ok


def test_cases_55_and_56_threads_are_as_asked_for_and_do_not_spin(exported):
    def options(**asked):
        return onnx_inference.session(exported, **asked).get_session_options()

    key = "session.intra_op.allow_spinning"
    assert [options(threads=n).intra_op_num_threads for n in (1, 2)] == [1, 2]
    assert options().intra_op_num_threads == machine.usable_cpus()
    assert options().get_session_config_entry(key) == "0"


@pytest.mark.parametrize("provider", [CUDA, "cpu"])
def test_case_58_a_provider_that_is_not_in_use_is_an_error(exported, capfd, recwarn, provider):
    if CUDA in onnxruntime.get_available_providers():
        pytest.skip("this build has CUDA")
    with pytest.raises(RuntimeError, match=rf"^{provider} is not in use, but \['CPU"):
        onnx_inference.session(exported, provider=provider)
    assert not recwarn.list
    assert capfd.readouterr() == ("", "")


def of_kind(kind, **sizes):
    config = transformers.AutoConfig.for_model(kind, **LARGE_WEIGHTS, **sizes)
    return transformers.AutoModelForSequenceClassification.from_config(config).eval()


def test_case_78_distilbert_gets_no_segment_ids(path):
    distil = of_kind("distilbert", vocab_size=100, dim=32, n_layers=2, n_heads=2, hidden_dim=64)
    opened = onnx_inference.session(onnx_export.export(distil, path, example()))
    assert list(onnx_inference.feed(opened, example())) == ["input_ids", "attention_mask"]
    assert onnx_export.parity(distil, opened).ok


def test_predict_keeps_the_order_and_takes_pairs(model, session, tiny_tokenizer):
    tokenizer = tiny_tokenizer(*"abcdefgh")
    texts = ["a b c d e f g", "h", "a b", "c " * 300, "d e f"]
    got = onnx_inference.predict(session, tokenizer, texts, max_tokens=20)
    assert (got.shape, got.dtype) == ((5, 3), np.float32)
    for text, row in zip(texts, got, strict=True):
        inputs = tokenizer(text, truncation=True, max_length=128, return_tensors="pt")
        with torch.no_grad():
            assert np.abs(model(**inputs).logits[0].numpy() - row).max() < onnx_export.TOLERANCE
    assert onnx_inference.predict(session, tokenizer, [("a b", "c"), ("d", "e")]).shape == (2, 3)


def test_predict_is_for_classifiers_of_whole_texts(new, path):
    """Token by token, one text alone would come out as if nothing were wrong."""
    opened = onnx_inference.session(onnx_export.export(new(BertForTokenClassification), path))
    with pytest.raises(ValueError, match=r"'length', 3\].*: predict classifies whole texts"):
        onnx_inference.predict(opened, None, ["a b"])


def test_a_file_runs_where_torch_cannot_be_imported(exported, run_python):
    code = """
        import sys
        sys.modules["torch"] = None  # an import of it now fails
        from helpers.lessons import onnx_inference
        inputs = {"input_ids": [[1, 2, 3]], "attention_mask": [[1, 1, 1]]}
        print(onnx_inference.run(onnx_inference.session(sys.argv[1]), inputs).shape)
    """
    assert run_python(code, exported).stdout.strip() == "(1, 3)"
