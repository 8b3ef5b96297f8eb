"""The solutions run and give their stored outputs; a lesson does so with a hub's model as well.

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


def test_lesson_with_a_hub(tmp_path):
    """The stored outputs hold with a hub (a loopback one), where nothing was before.

    One lesson will do, a short one: the model is the same to the byte, wherever it comes from.
    """
    texts = assets.provenance(datasets.reviews()).folder
    shutil.copytree(texts, tmp_path / "assets" / "packages" / texts.name)
    repos = {
        catalogue.CATALOGUE["minilm"].hub_id: assets.provenance(assets.tokenizer("minilm")).folder
    }
    with HubServer(repos) as hub:
        folders = {"BERT_ASSETS": str(tmp_path / "assets"), "HF_HOME": str(tmp_path / "home")}
        run = run_strictly(LESSONS[1], hub.url, **folders)
        assert run.status == 0, run.output[-6000:]
        assert any(
            asked == "GET" and "model.safetensors" in where for asked, where, _ in hub.requests
        )
