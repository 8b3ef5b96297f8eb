"""A room without a network: what `bundle` makes, what `--offline` refuses, and both for real."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

from helpers.models import catalogue, locate

import pytest

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT), str(ROOT / "docs")]
import bundle  # noqa: E402
import tutorial  # noqa: E402  as the command imports it

TARGET = tutorial.bundle_target("{}.{}".format(*sys.version_info))
TORCH = f"wheels/{TARGET}/torch-2.13.0-py3-none-any.whl"
REVIEWS = locate.package_folder(catalogue.find("reviews").package).name
WORK = """
from helpers import exercises
from helpers.models import assets
model, tokenizer = assets.model("minilm"), assets.tokenizer("minilm")
good, fine = model(**tokenizer(["a good film", "a fine movie"], return_tensors="pt"))[0].mean(1)
print(assets.provenance(model).kind, float(good @ fine / good.norm() / fine.norm()) > 0.6)
exercises.check_01_1(dict)
"""


@pytest.fixture
def room(tmp_path, monkeypatch):
    """A checkout of small files, one text, and in place of pip `room.pip`, which gives one wheel.

    Set-up fails when it gets as far as its first step.
    """

    def run(command, **options):
        (wheel,) = [Path(part[7:]) / Path(TORCH).name for part in command if part[:7] == "--dest="]
        wheel.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(wheel, "w") as file:
            file.writestr("torch-2.13.0.dist-info/METADATA", f"Requires-Dist: {pip.requires}\n")
        return pip

    pip = SimpleNamespace(returncode=0, stderr="", requires="numpy")
    checkout, texts = tmp_path / "checkout", tmp_path / REVIEWS
    for file in (checkout / "tutorial.py", checkout / ".venv/python", texts / "text", texts / "._"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("good")
    for name in tutorial.DECISIVE:
        shutil.copy(ROOT / name, checkout)
    origins = [locate.Provenance("reviews", "package", "", folder=texts)]
    monkeypatch.setattr(bundle.assets, "fetch", lambda: origins)
    monkeypatch.setattr(bundle.files, "ROOT", checkout)
    monkeypatch.setattr(bundle, "subprocess", SimpleNamespace(run=run))
    monkeypatch.setattr(os, "environ", os.environ | {"BERT_ASSETS": str(tmp_path / "assets")})
    for name in ("VENV", "STAMP", "LOCK", "PYTHON"):
        place = tmp_path / getattr(tutorial, name).relative_to(ROOT)
        monkeypatch.setattr(tutorial, name, place)
    monkeypatch.setattr(tutorial, "ROOT", checkout)
    monkeypatch.setattr(tutorial, "step", lambda *arguments: pytest.fail("a step was run"))
    monkeypatch.setattr(tutorial, "answers", lambda url: True)
    monkeypatch.chdir(tmp_path)
    return SimpleNamespace(pip=pip, stick=tmp_path / "stick", assets=tmp_path / "assets")


@pytest.mark.parametrize("platform", bundle.PLATFORMS)
def test_pins_are_those_of_the_target_and_not_of_this_machine(platform):
    names = {}
    for python in ("3.11.0", "3.11.9", "3.14.0"):
        pins = bundle.pins(tutorial.pins_without_cuda(), platform, python)
        names[python] = {pin.partition("==")[0] for pin in pins}
        assert ("soupsieve==2.10" in pins) == (python == "3.11.0")
        assert ("pywinpty" in names[python]) == platform.startswith("windows")
        assert {"torch", "setuptools", "jupyterlab", "pytest"} <= names[python]
        assert not [pin for pin in pins if pin.startswith(("nvidia", "cuda", "triton"))]
    assert "overrides" in names["3.11.0"] - names["3.14.0"]


def test_a_bundle_lists_its_files_and_is_unpacked_without_hidden_ones(room):
    room.pip.requires = 'nvidia-nvtx; platform_system == "Linux"'  # as PyTorch's wheels for macOS
    bundle.main(["stick", "--platform=macos-arm64", "--python=3.13", "--python=3.14"])
    listing = (room.stick / "SHA256SUMS").read_text().splitlines()
    assert [line.split()[1] for line in listing] == [
        "README.txt",
        "models/package/reviews/text",
        *(f"tutorial/{name}" for name in (*tutorial.DECISIVE, "tutorial.py")),
        *(TORCH.replace(TARGET, f"macos-arm64-3.{minor}") for minor in (13, 14)),
    ]
    assert "macos-arm64-3.13, macos-arm64-3.14\n" in (room.stick / "README.txt").read_text()
    (room.stick / "models/package/reviews/._text").touch()
    for _ in range(2):
        bundle.unpack(str(room.stick))
    assert [path.name for path in (room.assets / "packages" / REVIEWS).iterdir()] == ["text"]


@pytest.mark.parametrize(
    ("arguments", "free", "pip", "sentence"),
    [
        ("checkout/stick", 9, {}, "DIR must be a new folder outside of"),
        (__file__, 9, {}, "DIR must be a new folder outside of"),
        ("own", 9, {}, "own.part is in the way"),
        ("n" * 300, 9, {}, "File name too long"),
        ("stick --platform=solaris", 9, {}, "argument --platform: invalid choice: 'solaris'"),
        ("stick --python=3.10", 9, {}, "argument --python: invalid choice: '3.10'"),
        ("stick --python=3.11 --python=3.12", 2, {}, "needs 2.2 GB; there are 2.0 GB"),
        ("stick", 9, {"returncode": 1, "stderr": "No match for torchao==9"}, "for torchao==9"),
        ("stick", 9, {"returncode": 1, "stderr": "NewConnectionError"}, "could not be reached"),
        ("stick --platform=linux-aarch64", 9, {"requires": "nvidia-nvtx"}, "got a CUDA build"),
    ],
)
def test_a_bundle_that_cannot_be_made(room, monkeypatch, capsys, arguments, free, pip, sentence):
    Path("own.part/wheels").mkdir(parents=True)  # the user's
    vars(room.pip).update(pip)
    usage = shutil._ntuple_diskusage(99e9, 9e9, free * 1e9)
    monkeypatch.setattr(bundle.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(SystemExit) as caught:
        bundle.main(arguments.split())
    assert sentence in f"{caught.value} {capsys.readouterr().err}"
    assert not room.stick.exists()
    assert Path("own.part/wheels").exists()


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        (TORCH, "x", f"{TORCH} is damaged"),
        ("models/package/reviews/text", None, "models/package/reviews/text is missing"),
        (f"wheels/{TARGET}/a.whl", "x", "a.whl is not on its list: delete it"),
        ("models/package/bar/x", "x", "models/package/bar/x is not on its list: delete it"),
        ("SHA256SUMS", "0 *wheels/a\n", "SHA256SUMS is damaged"),
        ("SHA256SUMS", "0  wheels/windows-x8", "SHA256SUMS is damaged"),
        ("SHA256SUMS", None, "holds no finished bundle"),
        ("SHA256SUMS", "0  wheels/windows-x86_64-3.9/a\n", f"3.9, and this is {TARGET}"),
        ("../checkout/constraints.txt", "torch==9", "is for another version of the tutorial"),
    ],
)
def test_what_is_wrong_is_named_before_anything_is_installed(room, capsys, name, text, sentence):
    bundle.main(["stick"])
    (room.stick / TORCH).with_name("._torch.whl").touch()  # as macOS leaves them
    with pytest.raises(pytest.fail.Exception, match="a step was run"):
        tutorial.main(["lab", "--offline=stick"])
    tutorial.STAMP.unlink()
    (room.stick / name).unlink(missing_ok=True)
    if text:
        (room.stick / name).parent.mkdir(exist_ok=True)
        (room.stick / name).write_text(text)
    assert tutorial.main(["lab", "--offline", "stick"]) == 1
    assert sentence in capsys.readouterr().err
    assert [path.name for path in tutorial.VENV.iterdir()] == [tutorial.LOCK.name]


@pytest.mark.setup
@pytest.mark.timeout(1800)  # two minutes of CPU time, and a download
def test_the_tutorial_is_set_up_and_works_without_a_network(tmp_path):
    alone = ["unshare", "--map-root-user", "--net"]
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], check=False).returncode:
        pytest.skip("no network namespace can be made here, so nobody would see a download")
    stick, home = tmp_path / "stick", tmp_path / "home"
    command = [sys.executable, "-m", "helpers", "bundle", str(stick)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "could not be reached" in done.stderr:
        pytest.skip("a bundle is made with a network")
    assert done.returncode == 0, done.stderr
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=stick, check=True)
    shutil.copytree(stick / "tutorial", home / "copy")

    def run(*command):
        clean = {"HOME": str(home), "PATH": os.environ["PATH"], "PIP_FIND_LINKS": "/nowhere"}
        options = {"cwd": home / "copy", "env": clean, "check": False}
        done = subprocess.run([*alone, *command], capture_output=True, text=True, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    said = run(sys.executable, "tutorial.py", "lab", "--offline", str(stick), "--version")
    assert "(CPU build, from the bundle) ... done" in said
    shutil.rmtree(stick)
    assert "Installing" not in run(sys.executable, "tutorial.py", "lab", "--version")
    assert run(".venv/bin/python", "-c", WORK)[:13] in ("package True\n", "hub True\nnot ")
