"""tutorial.py on a miniature of this project: real interpreters, real venvs, real pip, but packages
of a few bytes.

The miniature's torch comes from a folder of wheels and its build backend stands in its own folder,
so that nothing needs a network; the backend can be told to wait, which makes "in the middle of pip"
a moment that a test can hit.
"""

import ast
import contextlib
import ctypes
import errno
import importlib.util
import json
import os
import pkgutil
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
BACKEND = """
import os, pathlib, time, zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    if os.environ.get("MINI_WAIT"):
        pathlib.Path(os.environ["MINI_WAIT"]).touch()
        time.sleep(1)
    name = "mini-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.writestr("mini.pth", os.path.abspath("src"))
        metadata = pathlib.Path("METADATA").read_text()
        wheel_tag = "Wheel-Version: 1.0\\nTag: py3-none-any\\n"
        files = {"METADATA": metadata, "WHEEL": wheel_tag, "RECORD": ""}
        for file, text in files.items():
            wheel.writestr("mini-1.0.dist-info/" + file, text)
    return name
"""
HELPERS = """
import json, sys, torch
print('ran', sys.argv[1:], torch.__name__)
sys.exit(7 if 'fail' in sys.argv else 0)
"""


pytestmark = pytest.mark.setup


@pytest.fixture(scope="module")
def tutorial():
    """The script as a module, for its pure functions."""
    return load(ROOT)


def load(folder):
    spec = importlib.util.spec_from_file_location("tutorial", folder / "tutorial.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel(folder, name, version):
    """Write the smallest wheel that pip installs."""
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}.py", "")
        info = f"{name}-{version}.dist-info/"
        about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        file.writestr(info + "METADATA", about)
        file.writestr(info + "WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        file.writestr(info + "RECORD", "")


class Mini:
    """A miniature of the project in a folder of its own."""

    def __init__(self, folder):
        if os.name == "nt":
            pytest.skip("these tests look into POSIX's places and send POSIX's signals")
        self.folder = folder / "a project"  # a space: paths are never pasted together
        self.wheels = folder / "wheels"
        (self.folder / "src/helpers").mkdir(parents=True)
        self.wheels.mkdir()
        (self.folder / "tutorial.py").write_text((ROOT / "tutorial.py").read_text())
        (self.folder / "backend.py").write_text(BACKEND)
        (self.folder / "src/helpers/__init__.py").touch()
        (self.folder / "src/helpers/data").mkdir()
        commands = "src/helpers/data/commands.json"
        (self.folder / commands).write_text((ROOT / commands).read_text())
        (self.folder / "src/helpers/__main__.py").write_text(HELPERS)
        self.require("torch==2.13.0")
        for name, version in (("torch", "2.13.0"), ("tool", "1.0"), ("tool", "2.0")):
            wheel(self.wheels, name, version)
        (self.wheels / "json.py").write_text('raise SystemExit("not Python\'s own")')
        self.stamp = self.folder / ".venv/tutorial.json"
        self.log = self.folder / ".venv/tutorial-pip.log"

    def require(self, torch):
        pins = f"{torch}\nnvidia-cublas==13.1 ; sys_platform == 'linux'\ntool==1.0\n"
        (self.folder / "constraints.txt").write_text(pins)
        (self.folder / "pyproject.toml").write_text(
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
            '[project]\nname = "mini"\nversion = "1.0"\ndependencies = ["torch"]\n'
            '[project.optional-dependencies]\ntest = ["tool"]\n'
        )
        (self.folder / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: mini\nVersion: 1.0\nRequires-Dist: torch\n"
            "Provides-Extra: test\nRequires-Dist: tool; extra == 'test'\n"
        )

    def start(self, *arguments, **variables):
        # PYTHONPATH would mix these packages into the miniature: tutorial.py has to keep it out.
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        clean |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels)}
        clean |= {"PIP_CONFIG_FILE": os.devnull, "PYTHONPATH": str(ROOT / "src")}
        clean |= {"https_proxy": "http://127.0.0.1:9"}  # PyTorch's index does not answer, at once
        return subprocess.Popen(
            [sys.executable, str(self.folder / "tutorial.py"), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean | variables,
            cwd=self.wheels,  # anywhere but the project: it is started by its path
        )

    def run(self, *arguments, **variables):
        process = self.start(*arguments, **variables)
        out, error = process.communicate(timeout=180)
        assert "Traceback" not in out + error
        return process.returncode, out, error

    def finished(self):
        return self.stamp.exists() and bool(json.loads(self.stamp.read_text())["packages"])


def table(name):
    """The rows of a file beside this one: what is met, and what has to follow."""
    return [line.split("\t") for line in Path(__file__).with_name(name).read_text().splitlines()]


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def mini(tmp_path):
    return Mini(tmp_path)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A miniature whose environment was begun several times, each killed a little later."""
    project = Mini(tmp_path_factory.mktemp("killed"))
    venv = project.folder / ".venv"
    torch = "lib/*/site-packages/torch-2.13.0.dist-info/INSTALLER"
    moments = {
        "before anything": venv.exists,
        "in the making of .venv": lambda: list(venv.glob("lib/*/site-packages/pip")),
        "between torch and the rest": lambda: list(venv.glob(torch)),
    }
    for moment, reached in moments.items():
        process = project.start("doctor")
        wait_for(reached)
        process.kill()
        out, error = process.communicate()
        assert "ran [" not in out, moment
        assert "Traceback" not in error, moment
        assert not project.finished(), moment
    return project


@pytest.fixture(scope="module")
def built(killed):
    """The same, finished by two starts at the same time; each test leaves it finished."""
    pair = [killed.start("doctor", "--any", "option") for _ in range(2)]
    said = [process.communicate(timeout=180) for process in pair]
    assert [process.returncode for process in pair] == [0, 0]
    killed.said = said
    return killed


def test_after_kills_two_starts_at_once_make_one_environment(built):
    outs, errors = zip(*built.said, strict=True)
    assert errors == ("", "")
    assert all("ran ['doctor', '--any', 'option'] torch" in out for out in outs)
    assert sorted(out.count("done") for out in outs) == [0, 4]
    assert any("waiting" in out for out in outs)
    assert built.finished()


def test_second_run_installs_nothing_in_under_two_seconds(built):
    log, seconds = built.log.read_bytes(), []
    for _ in range(3):  # the fastest of three: what else the machine is doing is not the question
        start = time.monotonic()
        code, out, _ = built.run("doctor")
        seconds.append(time.monotonic() - start)
        assert (code, out) == (0, "ran ['doctor'] torch\n")
    assert min(seconds) < 2
    assert built.run("bench", "fail")[0] == 7  # the command's own exit status
    assert built.log.read_bytes() == log
    assert not (built.folder / ".venv/tmp").exists()


def test_packages_that_cannot_be_had_take_nothing_away(built):
    module, state = load(built.folder), json.loads(built.stamp.read_text())
    assert module.intact(state)
    nobody = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "1"}
    nobody |= {"PIP_NO_INDEX": "0", "PIP_FIND_LINKS": str(built.folder)}
    error = built.run("test", **nobody)[2]
    for said in ("could not be reached", str(built.log), "`python3 tutorial.py lab` works"):
        assert said in error
    assert built.run("doctor", **nobody)[:2] == (0, "ran ['doctor'] torch\n")
    built.require("torch==2.13.1")
    assert "Nothing in there was changed" in built.run("doctor", **nobody)[2]
    for change in ({"root": "moved from here"}, {"python": "another one's"}):
        assert not module.intact({**state, **change})
        built.stamp.write_text(json.dumps({**state, **change}))
        assert "Asking for packages before" in built.run("doctor", **nobody)[1]
    built.require("torch==2.13.0")
    # Stopped in the midst of an update: what is cut short is installed once more, over the rest.
    next(built.folder.glob(".venv/lib/*/site-packages/torch.py")).unlink()
    built.stamp.write_text(json.dumps({**state, "packages": None, "was": state, "marks": []}))
    assert [built.run("doctor", **nobody)[0] for _ in range(2)] == [1, 1]
    assert built.run("doctor")[1].startswith("Installing PyTorch")
    module.PYTHON = built.folder / "gone"
    assert not module.intact(state)


def test_test_adds_the_constrained_tools_and_later_runs_keep_them(built):
    assert built.run("test", "-x")[1].endswith("ran ['test', '-x'] torch\n")
    # 2.0 is there too, but not allowed; NVIDIA's libraries are torch's own affair.
    assert "nvidia" not in (built.folder / ".venv/tutorial-constraints.txt").read_text()
    assert list(built.folder.glob(".venv/lib/*/site-packages/tool-1.0.dist-info"))
    assert built.run("doctor")[1] == "ran ['doctor'] torch\n"
    assert json.loads(built.stamp.read_text())["test"]


def test_changed_pin_is_installed_into_the_same_environment(built):
    wheel(built.wheels, "torch", "2.13.1")
    kept = built.folder / ".venv/kept"
    kept.touch()
    built.require("torch==2.13.1")
    assert "PyTorch 2.13.1" in built.run("doctor")[1]
    assert kept.exists()
    assert list(built.folder.glob(".venv/lib/*/site-packages/torch-2.13.1.dist-info"))


def test_local_build_of_the_pinned_torch_is_left_alone(built, tutorial):
    info = next(built.folder.glob(".venv/lib/*/site-packages/torch-*.dist-info"))
    metadata = (info / "METADATA").read_text()
    version = info.name[len("torch-") : -len(".dist-info")]
    (info / "METADATA").write_text(metadata.replace(version, version + "+cpu"))
    with (built.folder / "constraints.txt").open("a") as file:
        file.write("# a change\n")
    code, out, _ = built.run("doctor")
    assert code == 0
    assert "Installing PyTorch" not in out
    (info / "METADATA").write_text(metadata)


def test_environment_of_somebody_else_is_used_and_never_deleted(built):
    own = built.folder / ".venv/own notes"
    own.touch()
    built.stamp.write_text('{"packages')  # cut off: as good as none
    for path in built.folder.glob(".venv/lib/*/site-packages/pip*"):
        shutil.rmtree(path)  # as uv makes environments
    process = built.start("test", MINI_WAIT=str(built.wheels / "in pip"))
    wait_for((built.wheels / "in pip").exists)
    process.kill()
    process.communicate()
    assert not built.finished()
    assert built.run("doctor")[0] == 0
    assert built.finished()
    assert own.exists()


def test_environment_of_somebody_else_without_a_usable_python(mini):
    (mini.folder / ".venv/bin").mkdir(parents=True)
    (mini.folder / ".venv/bin/python").symlink_to(mini.folder / "gone")
    for _ in range(2):
        code, _, error = mini.run("doctor")
        assert code == 1
        assert "Move it away" in error
    assert (mini.folder / ".venv/bin/python").is_symlink()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_politely(mini, number, code):
    process = mini.start("doctor")
    wait_for((mini.folder / ".venv/pyvenv.cfg").exists)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in error
    assert not mini.finished()
    with (mini.folder / ".venv/tutorial.lock").open("a") as file:
        assert load(mini.folder).acquired(file), "something that it started is still at work"


def test_usage_installs_nothing(mini):
    for arguments in ([], ["--help"], ["-h"], ["site", "--help"], ["test", "-h"]):
        code, out, _ = mini.run(*arguments)
        assert code == 0
        assert "usage: python3 tutorial.py" in out
    for mistyped in ("--port", "dcotor"):
        code, _, error = mini.run(mistyped)
        assert code == 2
        assert error.startswith(f"{mistyped} is no command.")
    assert not (mini.folder / ".venv").exists()


def test_the_commands_are_those_of_the_package(tutorial):
    """Both read the same file; each command there names a function or a script."""
    found = subprocess.check_output([sys.executable, "-m", "helpers", "--help"], text=True)
    for name, (function, text) in tutorial.COMMANDS.items():
        assert f"  {name:15} {text}" in tutorial.USAGE
        assert f"  {name:15} {text}" in found
        assert (ROOT / function).is_file() or callable(pkgutil.resolve_name(function))


def in_folder(tutorial, monkeypatch, folder):
    """Point the module at an empty folder, without a step that runs anything."""
    for name in ("VENV", "STAMP", "LOCK", "PYTHON"):
        monkeypatch.setattr(tutorial, name, folder / getattr(tutorial, name).relative_to(ROOT))
    monkeypatch.setattr(tutorial, "nvidia_gpu", lambda: None)
    monkeypatch.setattr(tutorial, "step", lambda *arguments: pytest.fail("a step was run"))


def test_too_little_disk_beside_a_gpu_that_is_left_out(tutorial, monkeypatch, tmp_path, capsys):
    in_folder(tutorial, monkeypatch, tmp_path)
    monkeypatch.setattr(tutorial, "nvidia_gpu", lambda: (11040, (8, 6)))
    usage = tutorial.shutil._ntuple_diskusage(9e9, 8e9, 1e9)
    monkeypatch.setattr(tutorial.shutil, "disk_usage", lambda path: usage)
    assert tutorial.main(["doctor"]) == 1
    out, error = capsys.readouterr()
    assert "needs 2.5 GB free while it is made; there are 1.0 GB" in error
    assert "8.6) with this driver (for CUDA 11.4), so .venv gets the CPU build" in out


def test_no_ensurepip(tutorial, monkeypatch, tmp_path, capsys):
    in_folder(tutorial, monkeypatch, tmp_path)
    monkeypatch.setattr(tutorial.importlib.util, "find_spec", lambda name: None)
    assert tutorial.main(["doctor"]) == 1
    assert f"apt install python3.{sys.version_info[1]}-venv" in capsys.readouterr().err


def test_system_errors_become_sentences(tutorial, monkeypatch, tmp_path, capsys):
    in_folder(tutorial, monkeypatch, tmp_path)

    def fail(**stamp):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tutorial, "write_stamp", fail)
    assert tutorial.main(["doctor"]) == 1
    assert "disk is full" in capsys.readouterr().err


@pytest.mark.parametrize(("said", "advice"), table("setup_errors.tsv"))
def test_what_pip_says_becomes_a_sentence(tutorial, said, advice):
    sentence = tutorial.explain(said.replace(" | ", "\n"))
    assert advice in sentence
    assert len(sentence.splitlines()) < 10


def test_script_has_no_syntax_newer_than_python_36():
    ast.parse((ROOT / "tutorial.py").read_text(), feature_version=(3, 6))


@pytest.mark.parametrize("version", ["3.6", "3.8", "3.10", "3.15"])
def test_python_too_old_or_too_new(tutorial, monkeypatch, version):
    monkeypatch.setenv("PATH", "")
    sentence = tutorial.python_problem(version)
    assert f"Python 3.11 to 3.14, and this is Python {version}." in sentence
    assert "py install 3.13" in sentence
    assert "uv run --python 3.13 tutorial.py lab" in sentence
    assert [tutorial.python_problem(f"3.{minor}") for minor in (11, 12, 13, 14)] == [None] * 4


def test_python_problem_names_only_an_interpreter_that_runs(tutorial, monkeypatch, tmp_path):
    """Version managers put launchers on PATH that start nothing."""
    for name, line in {"python3.13": "exit 127", "python3.12": "echo 3.12"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "Run: python3.12 tutorial.py" in tutorial.python_problem("3.9")
    (tmp_path / "python3.12").unlink()
    assert "Install one of them" in tutorial.python_problem("3.9")


@pytest.mark.parametrize(("system", "machine", "version", "python", "said"), table("machines.tsv"))
def test_a_machine_without_packages_is_told_so_before_anything_is_installed(
    tutorial, monkeypatch, tmp_path, capsys, system, machine, version, python, said
):
    in_folder(tutorial, monkeypatch, tmp_path)
    monkeypatch.setattr(tutorial.platform, "system", lambda: system)
    monkeypatch.setattr(tutorial.platform, "machine", lambda: machine)
    monkeypatch.setattr(tutorial.platform, "libc_ver", version.split)
    monkeypatch.setattr(tutorial.platform, "mac_ver", lambda: (version, (), machine))
    monkeypatch.setattr(tutorial.sys, "maxsize", 2 ** (31 if python == "32" else 63) - 1)
    monkeypatch.setattr(tutorial, "output", lambda *command: python)  # of sysctl
    monkeypatch.setattr(tutorial.sysconfig, "get_platform", lambda: python)
    assert said in (tutorial.machine_problem() or "will do")
    if said != "will do":
        assert tutorial.main(["doctor"]) == 1
        assert said in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []


def nvidia(answers):
    """NVIDIA's driver library as "13000 6.1 8.9" describes it: its CUDA, and its GPUs."""
    cuda, *gpus = answers.split()

    def put(pointer, value):
        pointer._obj.value = int(value)
        return 0

    def attribute(pointer, number, device):
        return put(pointer, gpus[device.value].split(".")[number - 75])

    return SimpleNamespace(
        cuInit=lambda flags: 0 if gpus else 100,
        cuDriverGetVersion=lambda pointer: put(pointer, cuda),
        cuDeviceGetCount=lambda pointer: put(pointer, len(gpus)),
        cuDeviceGet=put,
        cuDeviceGetAttribute=attribute,
    )


@pytest.mark.parametrize(("system", "machine", "driver", "build"), table("gpus.tsv"))
def test_torch_for_each_machine(tutorial, monkeypatch, system, machine, driver, build):
    def library(name):
        if driver == "no driver":
            raise OSError(name)
        return nvidia(driver)

    monkeypatch.setattr(tutorial, "ctypes", SimpleNamespace(**vars(ctypes) | {"CDLL": library}))
    found = tutorial.torch_build(tutorial.nvidia_gpu(), machine)
    index = f"https://download.pytorch.org/whl/{build}"
    for reachable in (True, False):
        _, arguments = tutorial.torch_source("2.13.0", system, found, lambda url, r=reachable: r)
        special = [f"torch==2.13.0+{build}", "--extra-index-url", index]
        plain = build == "its own" or not reachable
        assert arguments == (["torch==2.13.0"] if plain else special)


def test_recipe_and_explain_need_no_environment(tutorial, monkeypatch, tmp_path):
    """They are run by the Python that is there, with the standard library alone (-S)."""
    in_folder(tutorial, monkeypatch, tmp_path)
    monkeypatch.setattr(tutorial, "hand_over", lambda *command, **variables: (*command, variables))
    for arguments in (["recipe", "07", str(tmp_path)], ["explain", "CUDA out of memory"]):
        python, rest, variables = tutorial.main(arguments)
        assert python == sys.executable
        command = [python, "-S", "-m", "helpers", *rest]
        out = subprocess.check_output(command, env=os.environ | variables, text=True)
        assert "embed_corpus.py" in out or "too small" in out
    assert [path.name for path in tmp_path.iterdir()] == ["embed_corpus.py"]


def test_probe_of_an_index_ends_within_seconds(tutorial, tmp_path):
    assert tutorial.answers(Path(__file__).as_uri())
    assert not tutorial.answers((tmp_path / "nothing-here").as_uri())
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as silent:
        start = time.monotonic()
        assert not tutorial.answers(f"http://127.0.0.1:{silent.getsockname()[1]}/", seconds=1)
        assert 0.9 < time.monotonic() - start < 3
