"""The solutions run and give their stored outputs; the first lessons do so with models from a hub
as well.

In a file of their own, so that a second worker can take them while the first runs the lessons.
"""

import shutil

from helpers.models import assets, catalogue, datasets
from helpers.tools import notebooks
from hub_server import HubServer

import pytest
from strict_nbval import LESSONS, UNREACHABLE, run_strictly

pytestmark = pytest.mark.notebook

SOLUTIONS = sorted((notebooks.NOTEBOOKS / "solutions").glob("[0-9][0-9]_*.ipynb"))


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.stem)
def test_solutions(path):
    run = run_strictly(path, UNREACHABLE)
    assert run.status == 0, run.output[-6000:]


@pytest.mark.parametrize("path", LESSONS[:2], ids=lambda path: path.stem)
def test_lesson_with_a_hub(path, tmp_path):
    """The stored outputs hold with a hub (a loopback one), where nothing was before."""
    texts = assets.provenance(datasets.reviews()).folder
    shutil.copytree(texts, tmp_path / "assets" / "packages" / texts.name)
    repos = {
        catalogue.CATALOGUE["minilm"].hub_id: assets.provenance(assets.tokenizer("minilm")).folder
    }
    with HubServer(repos) as hub:
        run = run_strictly(
            path, hub.url, BERT_ASSETS=str(tmp_path / "assets"), HF_HOME=str(tmp_path / "home")
        )
        assert run.status == 0, run.output[-6000:]
        assert any(
            asked == "GET" and "model.safetensors" in where for asked, where, _ in hub.requests
        )
