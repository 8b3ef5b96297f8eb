"""One set of versions: pyproject.toml decides, constraints.txt adds the rest, conda takes both."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from helpers.core import cuda
from helpers.tools import doctor

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = [Requirement(line) for line in PROJECT["dependencies"]]
TEST_PINS = [Requirement(line) for line in PROJECT["optional-dependencies"]["test"]]


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
    assert lines == ["--constraint constraints.txt", "--editable ."]
    assert set(versions) == {"python", "pip"}
    _, lines = conda("binder/environment.yml")
    assert lines == [
        "--extra-index-url https://download.pytorch.org/whl/cpu",
        "--constraint ../constraints.txt",
        "notebook==7.6.5",  # the base image's own, made to fit this JupyterLab
        "--editable ..",
    ]


def test_both_conda_environments_have_the_same_python_and_pip():
    assert conda("environment.yml")[0] == conda("binder/environment.yml")[0]


def test_required_python_is_the_same_everywhere():
    allowed = SpecifierSet(PROJECT["requires-python"])
    minors = [f"3.{minor}" for minor in range(20) if f"3.{minor}.0" in allowed]
    assert minors == ["3.11", "3.12", "3.13"]
    tutorial = (ROOT / "tutorial.py").read_text()
    assert f"PYTHONS = {tuple(reversed(minors))}".replace("'", '"') in tutorial
    assert conda("environment.yml")[0]["python"] in allowed


def test_constraints_repeat_the_pins():
    versions = pinned([r for r in constraints() if r.marker is None])
    for name, version in pinned(PINS + TEST_PINS).items():
        assert versions[name] == version, (
            f"{name}: regenerate constraints.txt with the command in its first lines"
        )


def test_constraints_leave_nothing_open():
    """Everything that the pins pull in here has exactly one version in constraints.txt."""
    here = {}
    for requirement in constraints():
        if requirement.marker is None or requirement.marker.evaluate():
            assert canonicalize_name(requirement.name) not in here, f"{requirement.name} twice"
            here |= pinned([requirement])
    waiting, seen = [(r.name, frozenset(r.extras)) for r in PINS + TEST_PINS], set()
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
    for python in ("3.11.0", "3.11.14", "3.12.0", "3.13.0"):
        for system, name in (("linux", "posix"), ("darwin", "posix"), ("win32", "nt")):
            target = {"python_full_version": python, "python_version": python.rsplit(".", 1)[0]}
            target |= {"sys_platform": system, "os_name": name}
            names = [
                canonicalize_name(r.name)
                for r in constraints()
                if not r.marker or r.marker.evaluate(target)
            ]
            assert len(names) == len(set(names)), (python, system)


def test_installed_environment_is_the_pinned_one():
    for name, version in pinned(PINS + TEST_PINS).items():
        assert Version(importlib.metadata.version(name)).public == version, name


def test_case_89_no_cuda_package_without_a_driver():
    """Without an NVIDIA driver, the environment holds torch's CPU build and no CUDA."""
    probe = "import tutorial; print(tutorial.nvidia_driver())"
    driver = subprocess.check_output([sys.executable, "-c", probe], cwd=ROOT, text=True).strip()
    if driver == "True" or sys.platform != "linux":
        pytest.skip("this machine has an NVIDIA driver, or a system whose torch never brings CUDA")
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
    ("name", "found", "said"),
    [
        (
            "jupyterlab_widgets",
            "1.0.2",
            "jupyterlab_widgets 1.0.2 (needs ~=3.0",
        ),  # its browser side
        ("torch", "2.12.1+cpu", "torch 2.12.1 (needs ==2.13.0)"),
        ("peft", None, "peft missing (needs =="),
    ],
)
def test_doctor_names_packages_that_do_not_fit(monkeypatch, name, found, said):
    real = importlib.metadata.version

    def version(asked):
        if asked != name:
            return real(asked)
        if found:
            return found
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "version", version)
    (line,) = [str(one) for one in doctor.examine() if one.subject == "packages"]
    assert said in line
    assert line.startswith("TO DO")
