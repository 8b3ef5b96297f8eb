"""Fixtures that all tests share.

Tiny models, a tokenizer, processes of their own, what a check said.
"""

import os
import subprocess
import sys
import tempfile
import textwrap

import helpers  # noqa: F401  before torch: it sets what torch and transformers read at import

import pytest

PROGRESS = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
os.environ["BERT_PROGRESS"] = PROGRESS.name  # right answers are not recorded in the home folder
LONGEST = ["notebooks", "solutions", "lab", "tutorial", "hub", "bundle", "new_notebook"]
LONGEST += ["timing", "families", "assets", "recipes", "students", "embedding", "gpu_report"]
TINY = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}


def pytest_collection_modifyitems(items):
    """The longest files first: with two workers, what is left over for the end is then small."""
    rank = {f"test_{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


@pytest.fixture(scope="session")
def tiny_config():
    """`tiny_config(num_labels=3)`: a BertConfig of 2 layers, 32 wide, with what is changed."""
    from transformers import BertConfig

    return lambda **changes: BertConfig(**TINY | changes)


@pytest.fixture(scope="session")
def tiny_model(tiny_config):
    """`tiny_model(BertModel, num_labels=3, seed=1)`: a model with random weights, in eval mode."""
    import torch

    def make(model_class, seed=0, **changes):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return model_class(tiny_config(**changes)).eval()

    return make


@pytest.fixture(scope="session")
def tiny_tokenizer():
    """`tiny_tokenizer("good", "bad", "##ly")`: BERT's tokenizer with these words (ids from 5)."""
    from transformers import BertTokenizer

    def make(*words, **options):
        special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
        return BertTokenizer(
            vocab={word: place for place, word in enumerate((*special, *words))}, **options
        )

    return make


@pytest.fixture
def run_python():
    """`run_python(code, *arguments, **environment)`.

    What a fresh process printed; it must succeed, in silence.
    """

    def run(code, *arguments, check=True, **environment):
        command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
        done = subprocess.run(
            command,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if check:
            assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done

    return run


@pytest.fixture
def said(capsys):
    """`said(check, answer, *context)`: what an exercise's check prints for an answer."""

    def ask(check, *arguments):
        capsys.readouterr()
        check(*arguments)
        return capsys.readouterr().out.strip()

    return ask
