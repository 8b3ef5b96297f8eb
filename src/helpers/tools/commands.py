"""What each command does: parse its options, call the module that does the work."""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from helpers.core import files

START = "notebooks/00_start_here.ipynb"


def _parser(command: str, text: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog=f"python -m helpers {command}", description=text)


def lab(rest: list[str]) -> int:
    """Fetch what the notebooks load, then open JupyterLab at the first one, or at a path."""
    require_checkout()
    command = [sys.executable, "-m", "jupyterlab", *opened(rest)]
    if not {"-h", "--help", "--help-all"} & {*rest} and fetch([]):
        print("The notebooks that need what is missing will say so; the others run.")
    # data/jupyter switches off JupyterLab's question about news.
    paths = [str(files.DATA / "jupyter"), os.environ.get("JUPYTER_CONFIG_PATH", "")]
    return _become(command, JUPYTER_CONFIG_PATH=os.pathsep.join(filter(None, paths)))


def opened(rest: list[str]) -> list[str]:
    """Return JupyterLab's arguments: its root, the page that it opens, what else was given."""
    from jupyterlab.labapp import LabApp

    parser = argparse.ArgumentParser("lab", add_help=False, allow_abbrev=False)
    roots = ("--notebook-dir", "--ServerApp.root_dir", "--ServerApp.notebook_dir")
    parser.add_argument(*roots, dest="root", type=Path)
    given, rest = parser.parse_known_args(rest)
    # What follows an option is its value, except after a flag and a "--option=value".
    free = [a[:2] != "--" or "=" in a or a[2:] in LabApp.flags for a in ["", *rest[:-1]]]
    at = next((n for n, text in enumerate(rest) if free[n] and text[:1] != "-"), None)
    path = None if at is None else rest.pop(at)
    checkout, first = files.ROOT.resolve(), Path(START).name
    here = first if Path(first).exists() else checkout / START  # in a copy, or anywhere else
    place = Path(path or given.root or here).resolve()
    above = place if place.is_dir() else checkout if checkout in place.parents else place.parent
    root = (given.root or above).resolve()
    page = place / first if (place / first).exists() else place
    if not (page.exists() and page.is_relative_to(root)):
        sys.exit(f"There is no notebook or folder {place} (JupyterLab's root: {root}).")
    # A file opens in the browser; the address that is printed needs the two options.
    address = "/lab" if page == root else f"/lab/tree/{quote(page.relative_to(root).as_posix())}"
    options = [f"--ServerApp.root_dir={root}", f"--LabApp.default_url={address}"]
    return [*options, *([str(page)] * page.is_file()), *rest]


def test(rest: list[str]) -> int:
    """Fetch what the tests load, then run the whole suite."""
    from helpers.core import machine
    from helpers.tools import browser

    require_checkout()
    if status := fetch([]):
        return status
    if not rest:  # the whole suite; a choice of tests takes what is there
        browser.provide()
    # Two workers, each with whole files: most of the suite keeps one core busy.
    workers = ["-n", str(min(2, machine.usable_cpus())), "--dist", "loadfile"]
    command = [sys.executable, "-m", "pytest", "-rs", *workers, "--no-loadscope-reorder", *rest]
    return _become(command, HF_HUB_DISABLE_PROGRESS_BARS="1")


def require_checkout() -> None:
    """Stop where there are no notebooks and tests: they are not part of an installed package."""
    if not (files.ROOT / START).exists():
        sys.exit("The notebooks and tests are not here: get the repository, and run this in it.")


def _become(command: list[str], **environment: str) -> int:
    """Replace this process by a command, so that Ctrl-C and signals reach it directly."""
    os.chdir(files.ROOT)
    sys.stdout.flush()
    if os.name != "nt":
        os.execve(command[0], command, os.environ | environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Windows Ctrl-C reaches the child as well
    return subprocess.call(command, env=os.environ | environment)


def doctor(rest: list[str]) -> int:
    """Print what this machine can run."""
    from helpers.tools import doctor

    _parser("doctor", doctor.__doc__).parse_args(rest)
    return doctor.main()


def fetch(rest: list[str]) -> int:
    """Fetch models and texts: all that the notebooks load, or those named."""
    from helpers.models import assets, catalogue

    parser = _parser("fetch", "Download models and texts ahead of time.")
    parser.add_argument("names", nargs="*", help="names from the catalogue; default: all")
    try:
        assets.fetch(parser.parse_args(rest).names or None)
    except (catalogue.AssetError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def recipe(rest: list[str]) -> int:
    """Copy the recipe of a notebook into a folder, or list all recipes."""
    from helpers.tools import notebooks

    parser = _parser("recipe", "Copy a notebook's code to take home: one plain file.")
    found = notebooks.recipes()
    number = {"type": lambda text: text.zfill(2), "choices": found, "metavar": "number"}
    parser.add_argument("number", nargs="?", **number, help="such as 07; default: list all")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), help="default: here")
    given = parser.parse_args(rest)
    if given.number is None:
        print(*(f"{number}  {path.name}" for number, path in found.items()), sep="\n")
        return 0
    path = found[given.number]
    target = given.folder / path.name
    if os.path.lexists(target):
        parser.error(f"{target} exists already and is not replaced")
    write(parser, [(target, path.read_bytes())])
    own = files.ROOT / ".venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    print(f"{target} ({own if own.exists() else 'python'} {target} --help)")
    return 0


def write(parser: argparse.ArgumentParser, contents: Iterable[tuple[Path, bytes]]) -> None:
    """Write files, each in one move; where the system refuses, its reason ends the command."""
    try:
        for path, content in contents:
            path.parent.mkdir(parents=True, exist_ok=True)
            with files.atomic_write(path) as part:
                part.write_bytes(content)
    except OSError as error:
        parser.error(f"{error}: name a folder that is yours to write in, and has room")


def explain(rest: list[str]) -> int:
    """Say what an error message or a traceback means, and what to read about it."""
    from helpers.lessons import device_errors

    parser = _parser("explain", "Say what an error message means, and what to read about it.")
    parser.add_argument("text", nargs="*", help="in quotes; default: what is pasted or piped in")
    text = " ".join(parser.parse_args(rest).text)
    if not text and sys.stdin.isatty():
        print(f"Paste the message, then {'Ctrl-Z, Enter' if os.name == 'nt' else 'Ctrl-D'}.")
    meaning = device_errors.explain_pasted(text or sys.stdin.read())
    print(meaning)
    return int(meaning == device_errors.UNKNOWN)


def run_of_docs(script: str, rest: list[str]) -> int:
    """Run a script of docs/, which is there in a checkout only."""
    require_checkout()
    with subprocess.Popen([sys.executable, files.ROOT / script, *rest]) as child:
        try:
            return child.wait()
        except KeyboardInterrupt:  # it has reached the script as well, which says what it leaves
            return child.wait()


def bench(rest: list[str]) -> int:
    """Measure everything that the tutorial claims, on this machine."""
    from helpers.tools import bench

    parser = _parser("bench", "Measure everything that the tutorial claims, on this machine.")
    parser.add_argument("--quick", action="store_true", help="a smaller run, to see that it works")
    parser.add_argument("--only", action="append", choices=bench.PARTS, help="one part; repeatable")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write here; other parts stay")
    given = parser.parse_args(rest)
    _check_target(parser, given.json)
    return bench.main(given.quick, given.only, given.json)


def gpu_report(rest: list[str]) -> int:
    """Measure what this machine's CUDA GPU does, in under 8 minutes."""
    from helpers.tools import gpu_report

    parser = _parser("gpu-report", "Measure what this machine's CUDA GPU does (under 8 minutes).")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write here, not in the package")
    target = parser.parse_args(rest).json
    _check_target(parser, target)
    return gpu_report.main(target or gpu_report.RECORDED)


def _check_target(parser: argparse.ArgumentParser, target: Path | None) -> None:
    """Refuse a file that could not be written, before minutes of measuring."""
    if target and (target.is_dir() or not target.resolve().parent.is_dir()):
        parser.error(f"--json takes a file in an existing folder, not {target.resolve()}")


def train_teacher(rest: list[str]) -> int:
    """Retrain the sentiment adapter of this package: about 25 minutes."""
    from helpers.tools import train

    _parser("train-teacher", "Retrain the sentiment adapter: about 25 minutes.").parse_args(rest)
    print(train.train_teacher())
    return 0


def train_student(rest: list[str]) -> int:
    """Retrain a student of notebook 06: 7 to 10 minutes."""
    from helpers.tools import train

    parser = _parser("train-student", "Retrain a student of notebook 06: 7 to 10 minutes.")
    parser.add_argument("name", nargs="?", choices=train.sentiment.LAYERS, default="three-layers")
    record = train.train_student(parser.parse_args(rest).name)
    print(*(f"{key:24} {value}" for key, value in record.items()), sep="\n")
    return 0
