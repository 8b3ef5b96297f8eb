"""A learner's copy, a page put back as it came, and the figures for a class."""

import json
import os
import subprocess

from helpers.core import files
from helpers.tools import cli, commands, notebooks, workspace

import pytest

_, PAGE, OTHER, *_ = notebooks.pages()


@pytest.fixture
def copy(tmp_path):
    assert cli.main(["notebooks", str(tmp_path / "mine")]) == 0
    return tmp_path / "mine"


def test_a_copy_is_whole_replaces_nothing_and_lab_opens_it(copy, capsys):
    assert (copy / "scripts/serve.py").is_file()
    (copy / PAGE.name).write_text("mine")
    (copy / OTHER.name).unlink()
    cli.main(["notebooks", str(copy)])
    assert ": 1 files are new" in capsys.readouterr().out
    assert (copy / PAGE.name).read_text() == "mine"
    assert (copy / OTHER.name).read_bytes() == OTHER.read_bytes()
    for given in ("{}", "--notebook-dir={}", "--no-browser {}", "--port 8 {}"):  # of lab
        assert f"--ServerApp.root_dir={copy}" in commands.opened(given.format(copy).split())


def test_reset_keeps_every_version(copy, monkeypatch, capsys):
    monkeypatch.chdir(copy)
    for text in ("first", "second", "third"):  # within one minute
        (copy / PAGE.name).write_text(text)
        assert cli.main(["reset", "1"]) == 0
    kept = [path.read_text() for path in copy.glob("01_*.mine-*.ipynb")]
    assert sorted(kept) == ["first", "second", "third"]
    (copy / OTHER.name).unlink()
    capsys.readouterr()
    cli.main(["reset", "01", "02", "01"])
    unchanged, back = capsys.readouterr().out.splitlines()
    assert unchanged.endswith("01_device_placement.ipynb: unchanged, nothing to do")
    assert back.endswith("02_gpu_memory.ipynb: back as it came")
    for page, original in zip(notebooks.pages(copy), notebooks.pages(), strict=True):
        assert page.read_bytes() == original.read_bytes()
    cli.main(["reset", "01", "--folder", "solutions"])
    assert "unchanged" in capsys.readouterr().out


@pytest.mark.parametrize("numbers", [["01", "77"], ["02", "01"]], ids=["unknown", "protected"])
def test_reset_touches_nothing_where_it_cannot_do_all(copy, monkeypatch, capsys, numbers):
    (copy / PAGE.name).write_text("mine")  # and root may write everywhere:
    monkeypatch.setattr(os, "access", lambda path, mode: path != copy / PAGE.name)
    with pytest.raises(SystemExit):
        cli.main(["reset", *numbers, "--folder", str(copy)])
    said = capsys.readouterr().err
    assert {"77": "no notebook 77: choose"}.get(
        numbers[1], "missing, protected or a folder"
    ) in said
    assert (copy / PAGE.name).read_text() == "mine"


@pytest.mark.parametrize("inner", ["", "solutions"])
def test_in_the_checkout_the_original_comes_from_git(copy, monkeypatch, inner):
    monkeypatch.setattr(workspace, "NOTEBOOKS", copy)
    with pytest.raises(SystemExit, match="git has no original"):
        cli.main(["reset", "01", "--folder", str(copy)])
    git = ["git", "-C", str(copy), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run([*git, *command], check=True)
    page = copy / inner / PAGE.name
    page.write_text("mine")
    cli.main(["reset", "01", "--folder", str(page.parent)])
    assert page.read_bytes() == (PAGE.parent / inner / PAGE.name).read_bytes()
    assert [path.read_text() for path in page.parent.glob("*.mine-*")] == ["mine"]


def test_capacity_adds_up_what_was_measured(capfd):
    seat = json.loads((files.DATA / "seats.json").read_text("utf-8"))["notebooks"]["04"]
    options = ["--notebook", "04", "--at-once", "20", "--cpus", "8", "64"]
    assert cli.main(["capacity", "--learners", "30", *options]) == 0
    said = capfd.readouterr().out
    ram = 1e9 + seat["hub_bytes"] + seat["shared_bytes"] + 30 * seat["private_bytes"]
    assert f"{ram / 1e9:.1f} GB with all seats" in said
    *_, eight, many = said.splitlines()
    assert eight.endswith(f"log in together, {20 / 8 * seat['cpu_seconds']:.0f} s to run all cells")
    assert f", {seat['cpu_seconds'] / 2:.0f} s to run" in many  # two CPUs are a seat's limit
    assert seat["machine"] in said
    cli.main(["capacity", "--learners", "30"])
    assert capfd.readouterr().out in (files.ROOT / "docs/hub.md").read_text("utf-8")


@pytest.mark.parametrize("options", ["0", "-3", "2.5", "3 --at-once 4", "3 --notebook 77"])
def test_capacity_says_what_is_wrong_with_a_number(capfd, options):
    assert cli.main(["capacity", "--learners", *options.split()]) == 2
    assert "capacity: error: " in capfd.readouterr().err
