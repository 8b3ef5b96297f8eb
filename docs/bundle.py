"""Make a folder, for a USB stick say, from which the tutorial is set up without a network.

`python3 tutorial.py bundle DIR` makes it. It holds README.txt, tutorial/ (this checkout), models/,
wheels/ with a folder for each target, such as linux-x86_64-3.13, and SHA256SUMS.
`tutorial.py lab --offline DIR` installs it, with `unpack`.
"""

import argparse
import json
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from helpers.core import files
from helpers.models import assets, catalogue, locate

from packaging.markers import default_environment
from packaging.requirements import Requirement

PLATFORMS = json.loads((files.DATA / "platforms.json").read_text(encoding="utf-8"))
README = (files.DATA / "templates/bundle.txt").read_text(encoding="utf-8")
CACHES = {".git", ".venv", "__pycache__", ".ipynb_checkpoints", ".pytest_cache", ".ruff_cache"}


def pins(text: str, platform: str, python: str) -> set[str]:
    """Return the lines of constraints.txt that hold for a platform and a Python like "3.13.0"."""
    markers = default_environment() | PLATFORMS[platform]["markers"]
    markers |= {"python_version": python.rpartition(".")[0], "python_full_version": python}
    needs = [Requirement(line) for line in text.splitlines() if line[:1] not in ("", "#")]
    fitting = [need for need in needs if need.marker is None or need.marker.evaluate(markers)]
    return {f"{need.name}{need.specifier}" for need in fitting}


def get_wheels(script, folder: Path) -> None:
    """Let pip put the wheels of a target into its folder; SystemExit says why it cannot."""
    platform, python = folder.name.rsplit("-", 1)
    system, torch = PLATFORMS[platform]["markers"]["platform_system"], script.project()[0]
    what, arguments = script.torch_source(torch, system, "cpu", script.answers)
    print(f"Wheels for {folder.name} (PyTorch: {what}; others: 0.3 GB) ...", flush=True)
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    command += ["--only-binary=:all:", f"--dest={folder}", *arguments]
    command += [f"--platform={tag}" for tag in PLATFORMS[platform]["tags"]]
    have = set()
    for version in (f"{python}.0", f"{python}.99"):  # some packages are pinned by patch release
        new = pins(script.pins_without_cuda(), platform, version) - have
        have |= new
        options = [f"--python-version={version}", *sorted(new)]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"Wheels for {folder.name}: {script.explain(done.stderr)}")
    (about,) = metadata.distributions(path=[str(path) for path in folder.glob("torch-*")])
    if system == "Linux" and "nvidia-" in str(about.requires):
        sys.exit(f"{folder.name}: got a CUDA build, since download.pytorch.org cannot be reached")


def copy(source: Path, target: Path, names: list | None = None) -> None:
    """Copy files from one folder to another, each in one move, but for those that are there."""
    for name in names or [path.name for path in source.glob("[!.]*")]:
        if (source / name).is_file() and not (target / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            with files.atomic_write(target / name) as part:
                shutil.copyfile(source / name, part)


def unpack(bundle: str) -> None:
    """Copy models and texts from a bundle to where this machine keeps them."""
    # macOS leaves files with a dot in front on sticks.
    for source in {path.parent for path in Path(bundle, "models").glob("[!.]*/[!.]*/[!.]*")}:
        asset = catalogue.find(source.name)
        from_hub = source.parent.name == "hub"
        copy(
            source, locate.snapshots(asset)[0] if from_hub else locate.package_folder(asset.package)
        )


def make(script, folder: Path, targets: list[str]) -> None:
    """Fill a new folder with all parts of a bundle, and list them."""
    (folder / "README.txt").write_text(README.replace("TARGETS", ", ".join(targets)), "utf-8")
    for origin in [origin for origin in assets.fetch() if origin.folder]:  # not stand-ins
        copy(origin.folder, folder / "models" / origin.kind / origin.name)
    names = script.output("git", "-C", str(files.ROOT), "ls-files", "-z").split("\0")
    if "tutorial.py" not in names:  # no git
        paths = [path.relative_to(files.ROOT) for path in files.ROOT.rglob("*")]
        names = [path for path in paths if not CACHES.intersection(path.parts)]
    copy(files.ROOT, folder / "tutorial", names)
    for target in targets:
        get_wheels(script, folder / "wheels" / target)
    # The list comes last, so a folder that has it is complete.
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    sums = [f"{files.sha256(path)}  {path.relative_to(folder).as_posix()}\n" for path in paths]
    (folder / "SHA256SUMS").write_text("".join(sums), encoding="utf-8", newline="\n")
    print(f"Finished: {sum(path.stat().st_size for path in paths) / 1e9:.2f} GB.")


def unfinished(part: Path) -> bool:
    """Return whether a folder is what a run that was stopped left, and nobody's own."""
    readme = part / "README.txt"
    if readme.is_file():
        return readme.read_bytes().startswith(README.partition("\n")[0].encode())
    return part.is_dir() and not any(part.iterdir())


def main(argv: list[str] | None = None) -> int:
    """Make a bundle beside its place and move it there; return the exit status."""
    sys.path.append(str(files.ROOT))
    import tutorial  # it knows PyTorch's builds, and what pip's errors mean

    own, python = tutorial.bundle_target("{}.{}".format(*sys.version_info)).rsplit("-", 1)
    parser = argparse.ArgumentParser("python -m helpers bundle", description=__doc__)
    parser.add_argument("folder", metavar="DIR", type=lambda text: Path(text).resolve())
    parser.add_argument("--platform", action="append", choices=PLATFORMS, help=f"or {own}")
    parser.add_argument("--python", action="append", choices=tutorial.PYTHONS, help=f"or {python}")
    given = parser.parse_args(argv)
    folder, part = given.folder, Path(f"{given.folder}.part")
    targets = [f"{a}-{b}" for a in given.platform or [own] for b in given.python or [python]]
    try:
        if folder.exists() or files.ROOT in folder.parents:
            parser.error(f"DIR must be a new folder outside of {files.ROOT}, and not {folder}")
        if part.exists() and not unfinished(part):
            parser.error(f"{part} is in the way: move it, or choose another DIR")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        need, free = 1.1 + 0.55 * len(targets), shutil.disk_usage(part).free / 1e9
        if free < need:
            sys.exit(f"Too little disk: {part} needs {need:.1f} GB; there are {free:.1f} GB.")
        make(tutorial, part, targets)
        part.rename(folder)
    except OSError as error:
        sys.exit(f"The bundle was not finished: {error}")
    except KeyboardInterrupt:
        sys.exit(f"Stopped; {part} is not finished. The next run begins anew.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
