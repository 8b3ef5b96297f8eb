"""The Binder image as repo2docker plans it, without Docker; its two scripts, run for real."""

import json
import logging
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from repo2docker.app import Repo2Docker
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.setup,
    pytest.mark.skipif(os.name == "nt", reason="the image is Linux; its scripts need bash"),
]
SCRIPTS = ("binder/postBuild", "binder/start", ".ci/run")


@pytest.fixture(scope="module")
def plan():
    """The Dockerfile and the buildpack that repo2docker picks for this repository."""
    before = Path.cwd()
    os.chdir(ROOT)  # where repo2docker's buildpacks look for their files
    try:
        application = Repo2Docker(repo=str(ROOT))
        packs = (kind(base_image=application.base_image) for kind in application.buildpacks)
        pack = next(pack for pack in packs if pack.detect())
        pack.platform = "linux/amd64"
        return pack.render({"NB_USER": "jovyan", "NB_UID": "1000"}), pack
    finally:
        os.chdir(before)
        logging.getLogger("repo2docker").handlers.clear()


def test_conda_environment_is_read(plan):
    dockerfile, pack = plan
    assert type(pack).__name__ == "CondaBuildPack"
    assert pack.python_version == "3.11"
    assert '--file "binder/environment.yml"' in dockerfile
    assert "RUN ./binder/postBuild" in dockerfile
    assert 'ENV R2D_ENTRYPOINT="${REPO_DIR}/binder/start"' in dockerfile


def test_constraints_and_pip_settings_are_there_when_packages_are_installed(plan):
    """The whole repository is copied first, into the home folder."""
    dockerfile, _ = plan
    copied = dockerfile.index("COPY --chown=1000:1000 src/ ${REPO_DIR}/")
    assert copied < dockerfile.index("env update")
    assert "ARG REPO_DIR=${HOME}" in dockerfile
    assert (ROOT / "binder/../constraints.txt").is_file()


def test_case_89_no_pip_cache_in_the_image(tmp_path):
    """pip itself, with a copy of this repository as its home folder, says that it has no cache."""
    shutil.copytree(ROOT / ".config", tmp_path / ".config")
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "XDG_"))
    }
    command = [sys.executable, "-m", "pip", "cache", "dir"]
    with_cache = subprocess.run(command, env=clean | {"HOME": "/"}, capture_output=True, text=True)
    assert with_cache.returncode == 0
    result = subprocess.run(
        command, env=clean | {"HOME": str(tmp_path)}, capture_output=True, text=True
    )
    assert result.returncode == 1
    assert "cache is disabled" in result.stderr
    assert not re.search(r"\bpip\b", (ROOT / "binder/postBuild").read_text())


def test_case_89_no_cuda_package_can_get_in(plan):
    """With PyTorch's CPU index, the CPU build is the newest that the constraint allows."""
    dockerfile, _ = plan
    *plain, pip = YAML(typ="safe").load((ROOT / "binder/environment.yml").read_text())[
        "dependencies"
    ]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    (torch,) = [Requirement(line) for line in lines if line.startswith("torch==")]
    (pinned,) = (part.version for part in torch.specifier)
    builds = [Version(pinned), Version(f"{pinned}+cpu"), Version("99")]
    assert max(torch.specifier.filter(builds)) == Version(f"{pinned}+cpu")
    assert "--extra-index-url https://download.pytorch.org/whl/cpu" in pip["pip"]
    for line in [*plain, *pip["pip"], dockerfile, (ROOT / "binder/postBuild").read_text()]:
        assert not re.search(r"nvidia|triton|cuda|cu1\d\d", line, re.IGNORECASE)


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_is_executable(script):
    path = ROOT / script
    assert path.read_bytes().startswith(b"#!/bin/bash\n")
    assert b"\r" not in path.read_bytes()
    subprocess.run(["bash", "-n", path], check=True)
    assert path.stat().st_mode & stat.S_IXUSR
    listed = subprocess.run(
        ["git", "ls-files", "--stage", script], cwd=ROOT, capture_output=True, text=True
    ).stdout
    assert not listed or listed.startswith("100755"), "git does not know that it is executable"


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system cannot limit a process to some CPUs"
)
def test_start_sets_threads_to_the_usable_cpus_and_becomes_the_command():
    names = [f"{library}_NUM_THREADS" for library in ("OMP", "MKL", "OPENBLAS")]
    program = f"import os; print(os.getpid(), *(os.environ[name] for name in {names}))"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    one_cpu = {min(os.sched_getaffinity(0))}
    process = subprocess.Popen(
        [ROOT / "binder/start", "python", "-c", program],
        env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, one_cpu),
    )
    assert process.communicate(timeout=30)[0].split() == [str(process.pid), "1", "1", "1"]


def test_start_ends_idle_kernels():
    """Two open notebooks do not fit into Binder's 2 GB; data/jupyter, for laptops, ends none."""
    from jupyter_server.services.kernels.kernelmanager import MappingKernelManager

    command = [ROOT / "binder/start", "sh", "-c", "echo $JUPYTER_CONFIG_PATH"]
    first, second, *_ = subprocess.check_output(command, cwd=ROOT, text=True).strip().split(":")
    assert not list(Path(second).glob("*.json"))
    settings = json.loads((Path(first) / "jupyter_server_config.json").read_text())
    (settings,) = settings.values()
    assert settings["cull_connected"]
    assert settings["cull_idle_timeout"] >= 15 * 60
    assert settings.keys() <= MappingKernelManager.class_traits().keys()
