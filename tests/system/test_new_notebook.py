"""A notebook that is begun from the templates, and filled, passes the checks of all notebooks."""

import json
import os
import shutil
import subprocess
import sys

from helpers.core import files
from helpers.tools import new_notebook

import pytest

FILLED = ["lengths * 2", "assert lengths.sum() == 8", "{text: len(text) for text in texts}"]


@pytest.mark.notebook
def test_a_new_notebook_is_complete_and_nothing_else_has_to_be_touched(tmp_path):
    """In a copy of the project."""
    folder = tmp_path / "project"
    left_out = shutil.ignore_patterns(".venv", ".git", "__pycache__", "*.egg-info")
    shutil.copytree(files.ROOT, folder, ignore=left_out)

    def run(*arguments):
        command = [sys.executable, "-m", *arguments]
        environment = os.environ | {"PYTHONPATH": str(folder / "src")}
        options = {"capture_output": True, "text": True, "cwd": folder, "env": environment}
        done = subprocess.run(command, check=False, **options)
        assert done.returncode == 0, done.stdout + done.stderr

    run("helpers", "new-notebook", "97", 'Can a "batch" be too large?')
    (path,) = folder.glob("notebooks/97_*.ipynb")
    page = json.loads(path.read_text())
    places = [i for i, cell in enumerate(page["cells"]) if "Say what" in "".join(cell["source"])]
    for number, text in enumerate(FILLED):
        cell = {"cell_type": "code", "id": f"filled-{number}", "metadata": {}, "outputs": []}
        page["cells"].insert(places[-1], cell | {"source": text, "execution_count": None})
    path.write_text(json.dumps(page))
    run("helpers", "store-notebooks", "97")
    tests = [
        "tests/notebooks",
        "tests/exercises/test_exercises_97.py",
        "tests/system/test_house.py",
    ]
    run("pytest", "-q", "-p", "no:xdist", "-k", "97 or tables or house", *tests)
    run("ruff", "check", "--no-cache", "src", "tests", "notebooks")
    run("ruff", "format", "--check", "--no-cache", "src", "tests", "notebooks")
    assert (
        "| [97](notebooks/97_can_a_batch_be_too_large.ipynb) |"
        in (folder / "README.md").read_text()
    )


@pytest.mark.parametrize(
    ("number", "title", "words"),
    [("9", "Why?", "two digits"), ("98", "Batches", "question mark"), ("01", "Why?", "exists")],
)
def test_what_cannot_be_begun_is_said_and_nothing_is_written(
    number, title, words, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(files, "ROOT", tmp_path)
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "01_placement.ipynb").touch()
    with pytest.raises(SystemExit, match="2"):
        new_notebook.main([number, title])
    assert words in capsys.readouterr().err
    assert len(list(tmp_path.rglob("*"))) == 2
