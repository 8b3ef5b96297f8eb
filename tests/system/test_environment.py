"""One set of versions: constraints.txt, within the bounds of pyproject.toml; conda takes both.

The package installed without the repository; what GitHub, Codespaces and VS Code run.
"""

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from helpers.core import cuda, files
from helpers.tools import cli, doctor

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TUTORIAL = (ROOT / "tutorial.py").read_text()
NEEDS = [Requirement(line) for line in PROJECT["dependencies"]]
EXTRAS = PROJECT["optional-dependencies"]  # those of "test" begin with all of "site"
TEST_NEEDS = [Requirement(line) for line in EXTRAS["site"] + EXTRAS["test"][1:]]


def conda(file):
    """An environment.yml as (python and pip: versions, what pip is given)."""
    *plain, pip = YAML(typ="safe").load((ROOT / file).read_text())["dependencies"]
    return dict(line.split("=") for line in plain), pip["pip"]


def constraints():
    """constraints.txt as a list of requirements."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def pinned(requirements):
    """Name: version; every requirement has to be pinned to exactly one version."""
    for requirement in requirements:
        assert re.fullmatch(r"==[\w.+]+", str(requirement.specifier)), (
            f"{requirement} is not pinned"
        )
    return {canonicalize_name(r.name): next(iter(r.specifier)).version for r in requirements}


def test_conda_environments_take_their_pins_from_constraints():
    """Both install the package itself, within constraints.txt, and repeat no version of it."""
    versions, lines = conda("environment.yml")
    cpu = "--extra-index-url https://download.pytorch.org/whl/cpu"  # no edit, whatever the machine
    assert lines == [cpu, "--constraint constraints.txt", "--editable ."]
    assert set(versions) == {"python", "pip"}
    same, lines = conda("binder/environment.yml")
    assert same == versions
    assert lines == [
        cpu,
        "--constraint ../constraints.txt",
        "notebook==7.6.5",  # the base image's own, made to fit this JupyterLab
        "--editable ..",
    ]


def test_conda_users_with_a_gpu_are_told_the_builds_of_tutorial_py():
    text, version = (ROOT / "environment.yml").read_text(), importlib.metadata.version("torch")
    assert f"torch=={Version(version).public}+cu130 --extra-index-url https://download.py" in text
    assert set(re.findall(r"\bcu\d+", text)) == set(re.findall(r'"(cu\d+)"', TUTORIAL))


def test_required_python_is_the_same_everywhere():
    allowed = SpecifierSet(PROJECT["requires-python"])
    minors = [f"3.{minor}" for minor in range(20) if f"3.{minor}.0" in allowed]
    assert minors == ["3.11", "3.12", "3.13", "3.14"]
    assert f"PYTHONS = {tuple(reversed(minors))}".replace("'", '"') in TUTORIAL
    assert f'# requires-python = "{PROJECT["requires-python"]}"\n' in TUTORIAL  # for `uv run`
    assert conda("environment.yml")[0]["python"] in allowed


def test_constraints_are_within_the_bounds_and_the_bounds_tear_nothing_out():
    versions = pinned([r for r in constraints() if r.marker is None])
    for need in NEEDS + TEST_NEEDS:
        assert versions[canonicalize_name(need.name)] in need.specifier, need
        assert {one.operator for one in need.specifier} <= {">="}, need


def test_constraints_leave_nothing_open():
    """Everything that the pins pull in here has exactly one version in constraints.txt."""
    here = {}
    for requirement in constraints():
        if requirement.marker is None or requirement.marker.evaluate():
            assert canonicalize_name(requirement.name) not in here, f"{requirement.name} twice"
            here |= pinned([requirement])
    waiting, seen = [(r.name, frozenset(r.extras)) for r in NEEDS + TEST_NEEDS], set()
    while waiting:
        name, extras = waiting.pop()
        needs = importlib.metadata.requires(name) or []
        version = Version(importlib.metadata.version(name)).public
        assert here.get(canonicalize_name(name)) == version, (
            f"{name} {version} is not in constraints.txt"
        )
        for need in map(Requirement, needs):
            wanted = need.marker is None or any(
                need.marker.evaluate({"extra": extra}) for extra in (extras or {""})
            )
            key = (need.name, frozenset(need.extras))
            if wanted and key not in seen:
                seen.add(key)
                waiting.append(key)
    assert len(seen) > 80


def test_constraints_hold_on_every_supported_python():
    """Whatever the Python from 3.11.0 on, exactly one version of each package is meant."""
    for python in ("3.11.0", "3.11.14", "3.12.0", "3.13.0", "3.14.0"):
        for system, name in (("linux", "posix"), ("darwin", "posix"), ("win32", "nt")):
            target = {"python_full_version": python, "python_version": python.rsplit(".", 1)[0]}
            target |= {"sys_platform": system, "os_name": name}
            names = [
                canonicalize_name(r.name)
                for r in constraints()
                if not r.marker or r.marker.evaluate(target)
            ]
            assert len(names) == len(set(names)), (python, system)


def test_case_89_no_cuda_package_without_a_driver():
    """Without an NVIDIA driver, the environment holds torch's CPU build and no CUDA."""
    probe = "import tutorial; print(tutorial.nvidia_gpu())"
    gpu = subprocess.check_output([sys.executable, "-c", probe], cwd=ROOT, text=True).strip()
    if gpu != "None" or sys.platform != "linux":
        pytest.skip("this machine has an NVIDIA GPU, or a system whose torch never brings CUDA")
    names = {
        canonicalize_name(d.metadata["Name"])
        for d in importlib.metadata.distributions()
        if d.metadata["Name"]
    }
    assert not [name for name in names if name.startswith(("nvidia-", "cuda-")) or name == "triton"]
    import torch

    assert torch.version.cuda is None
    assert not cuda.cuda_status().available


@pytest.mark.parametrize(
    ("own", "name", "found", "said"),
    [
        (False, "jupyterlab_widgets", "1.0.2", "jupyterlab_widgets 1.0.2 (needs ~=3.0"),
        (True, "torch", "2.12.1+cpu", "torch 2.12.1 (needs ==2.13.0); `python3 tutorial.py lab`"),
        (True, "peft", None, "peft missing (needs =="),
        (False, "torch", "2.12.0a0+nv26", None),  # a host's own is within the bounds
        (False, "torch", "2.10.0", "(needs >=2.11); `pip install -e . -c constraints.txt` in "),
        (False, "helpers", "0.1", "another project's helpers hides ours: `pip uninstall helpers`"),
    ],
)
def test_doctor_names_packages_that_do_not_fit(monkeypatch, own, name, found, said):
    real, requires = importlib.metadata.version, importlib.metadata.requires

    def version(asked):
        if asked != name:
            return real(asked)
        if found:
            return found
        raise importlib.metadata.PackageNotFoundError

    def needs(asked):  # the checkout's, whatever was installed
        return PROJECT["dependencies"] if asked == PROJECT["name"] else requires(asked)

    monkeypatch.setattr(importlib.metadata, "requires", needs)
    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(files, "in_own_environment", lambda: own)
    (line,) = [str(one) for one in doctor.examine() if one.subject == "packages"]
    assert (said or "torch 2.") in line
    assert line.startswith("TO DO" if said else "OK")


def test_doctor_names_the_command_of_the_environment_and_why_torch_does_not_start(monkeypatch):
    def devices():
        raise OSError('[WinError 126] Error loading "torch\\lib\\c10.dll" or a dependency')

    monkeypatch.setattr(doctor.machine, "devices", devices)
    monkeypatch.setattr(doctor.assets, "status", lambda: {"minilm": "missing"})
    monkeypatch.setattr(doctor.notebooks, "lessons", list)
    for prefix, says in ((ROOT / ".venv", "python3 tutorial.py fetch"), (ROOT, "-m helpers fetch")):
        monkeypatch.setattr(sys, "prefix", str(prefix))
        said = {one.subject: one.detail for one in doctor.examine()}
        assert says in said["minilm"]
    assert "in the repository" in said["notebooks"]
    assert "vc_redist.x64.exe" in said["devices"]


WORK = """
    import importlib, os, pathlib, sys, helpers
    from helpers import exercises
    from helpers.tools import cli, doctor
    os.chdir(sys.argv[1])
    package = pathlib.Path(helpers.__file__).parent
    for module in package.glob("[elrw]*s/[!_]*.py"):  # exercises, lessons, recipes, widgets
        importlib.import_module(f"helpers.{module.parent.name}.{module.stem}")
    print(package, helpers.lessons.sentiment.TEACHER_LOGITS.exists())
    exercises.check_01_1(dict)
    print(*doctor.examine(), sep="\\n")
    cli.main(["recipe", "07"])
    try:
        cli.main(["lab"])
    except SystemExit as error:
        print(error)
"""


@pytest.mark.setup
def test_the_installed_package_works_in_an_empty_folder(tmp_path, run_python):
    project, site, empty = (tmp_path / name for name in ("project", "site", "empty"))
    empty.mkdir()
    left_out = shutil.ignore_patterns("*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", project / "src", ignore=left_out)
    for file in (ROOT / "pyproject.toml", ROOT / "README.md", ROOT / "LICENSE"):
        shutil.copy(file, project)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--target", site, project], check=True)
    said = run_python(WORK, empty, PYTHONPATH=str(site)).stdout
    assert said.startswith(f"{site / 'helpers'} True\nnot quite, because ")
    assert "\nOK     packages: python" in said
    assert "\nOK     notebooks: none here" in said
    assert "tutorial.py" not in said
    assert "get the repository" in said
    assert [path.name for path in empty.iterdir()] == ["embed_corpus.py"]


def test_workflows_and_codespaces_run_what_there_is():
    texts = [path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml")]
    jobs = [job for text in texts for job in YAML(typ="safe").load(text)["jobs"].values()]
    lines = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    codespace = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    for line in [*lines, codespace["postCreateCommand"]]:
        assert re.match(r"python3? (tutorial\.py|-m helpers|-m pip) |\.ci/run$", line), line
        assert set(re.findall(r"(?:tutorial\.py|helpers) (\S+)", line)) <= set(cli.COMMANDS)
    (pythons,) = (job["strategy"]["matrix"]["python"] for job in jobs if "strategy" in job)
    assert f"PYTHONS = {tuple(reversed(pythons))}".replace("'", '"') in TUTORIAL
    (marks,) = re.findall(r'test -m ("not note.*")', "\n".join(lines))
    assert f"pytest -m {marks}" in (ROOT / "CONTRIBUTING.md").read_text()
