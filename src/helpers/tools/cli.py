"""The command line, `python -m helpers lab | test | doctor | fetch | bench ...`; `tutorial.py` hands over to it."""

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

from helpers.core import files
from helpers.models import catalogue
from helpers.tools import notebooks

START = "notebooks/00_start_here.ipynb"


def lab(rest: list[str]) -> int:
    """Fetch what the lessons load, then open JupyterLab at the first notebook; further options go to JupyterLab."""
    allowed = any(option.startswith(("--allow-root", "--ServerApp.allow_root")) for option in rest)
    if hasattr(os, "geteuid") and os.geteuid() == 0 and not allowed:
        print(
            "As root, as in many containers, JupyterLab only starts with --allow-root: add it.",
            file=sys.stderr,
        )
        return 1
    status = fetch([])
    if status:
        print("The notebooks that need what is missing will say so; the others run.")
    # The folder `jupyter` beside this file switches off JupyterLab's question about news: nobody in a lesson wants it.
    paths = [
        str(files.DATA / "jupyter"),
        *os.environ.get("JUPYTER_CONFIG_PATH", "").split(os.pathsep),
    ]
    # START opens in the browser; the address that is printed, for those who open it themselves, needs the other.
    places = [
        START,
        f"--ServerApp.root_dir={notebooks.ROOT}",
        f"--LabApp.default_url=/lab/tree/{START}",
    ]
    command = [sys.executable, "-m", "jupyterlab", *places, *rest]
    return _become(command, JUPYTER_CONFIG_PATH=os.pathsep.join(filter(None, paths)))


def test(rest: list[str]) -> int:
    """Fetch what the tests load, then run the whole suite; further options go to pytest."""
    from helpers.core import machine

    status = fetch([])
    if status:
        return status
    # Most of the suite keeps one core busy, so two workers, each with whole files, take little more than half the time.
    workers = [
        "-n",
        str(min(2, machine.usable_cpus())),
        "--dist",
        "loadfile",
        "--no-loadscope-reorder",
    ]
    return _become(
        [sys.executable, "-m", "pytest", *workers, *rest], HF_HUB_DISABLE_PROGRESS_BARS="1"
    )


def _become(command: list[str], **environment: str) -> int:
    """Run a command in the tutorial's folder in place of this process, so that Ctrl-C and signals reach it directly."""
    os.chdir(notebooks.ROOT)
    sys.stdout.flush()
    if os.name != "nt":
        os.execve(command[0], command, os.environ | environment)
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # on Windows Ctrl-C reaches the child as well, which closes down
    return subprocess.call(command, env=os.environ | environment)


def fetch(names: list[str]) -> int:
    """Fetch models and texts (all that the lessons load, or those named); 0 if everything is here at the end."""
    from helpers.models import assets

    try:
        assets.fetch(names or None)
    except (catalogue.AssetError, ValueError) as error:  # cannot be had; no such name
        print(error, file=sys.stderr)
        return 1
    return 0


def train(name: str | None) -> int:
    """Train one of notebook 06's students anew, or without a name their teacher; 0 if it is stored at the end."""
    from helpers.tools import train

    try:
        if name is None:
            print(train.train_teacher())
        else:
            print(
                "\n".join(f"{key:24} {value}" for key, value in train.train_student(name).items())
            )
    except (catalogue.AssetError, ValueError) as error:  # no MiniLM or no texts; no such name
        print(error, file=sys.stderr)
        return 1
    return 0


def main(argv: list[str] | None = None) -> int:
    """Parse the command line and run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m helpers", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser(
        "lab",
        help="open JupyterLab (--no-browser, --port 8889 and its other options are passed on)",
    )
    commands.add_parser("test", help="run all tests (options are passed on to pytest)")
    commands.add_parser("doctor", help="is this machine ready, and for which notebooks?")
    getter = commands.add_parser("fetch", help="get models and texts ahead")
    getter.add_argument(
        "names", nargs="*", help="names from the catalogue; default: all that the lessons load"
    )
    measure = commands.add_parser(
        "bench", help="measure everything the tutorial claims, on this machine"
    )
    measure.add_argument(
        "--quick", action="store_true", help="a smaller run of every part, to see that it works"
    )
    measure.add_argument(
        "--only",
        action="append",
        metavar="PART",
        help="run this part only (may be repeated): notebooks, memory, ...",
    )
    measure.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write every number to this file; parts in it stay",
    )
    reporter = commands.add_parser(
        "gpu-report", help="measure what this machine's CUDA card does (under 8 minutes)"
    )
    reporter.add_argument(
        "--json", type=Path, metavar="FILE", help="write it here, not into the package"
    )
    student = commands.add_parser(
        "train-student", help="train a student of notebook 06 anew: 7 to 10 minutes"
    )
    student.add_argument(
        "name", nargs="?", default="three-layers", help="which one; default: %(default)s"
    )
    commands.add_parser(
        "train-teacher", help="train the sentiment adapter of this package anew: about 25 minutes"
    )
    options, rest = parser.parse_known_args(argv)
    if options.command in ("lab", "test"):
        return {"lab": lab, "test": test}[options.command](rest)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if options.command == "fetch":
        return fetch(options.names)
    if options.command == "train-teacher":
        return train(None)
    if options.command == "train-student":
        return train(options.name)
    if options.command == "doctor":
        from helpers.tools import doctor

        return doctor.main()
    if options.json and (options.json.is_dir() or not options.json.resolve().parent.is_dir()):
        parser.error(f"--json takes a file in a folder that is there, not {options.json.resolve()}")
    if options.command == "gpu-report":
        from helpers.tools import gpu_report

        return gpu_report.main(options.json or gpu_report.RECORDED)
    from helpers.tools import bench

    unknown = set(options.only or []) - set(bench.PARTS)
    if unknown:
        parser.error(
            f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(bench.PARTS)}"
        )
    if options.json and options.json.exists():
        try:
            bench.load(options.json)
        except ValueError as error:
            parser.error(str(error))
    return bench.main(options.quick, options.only, options.json)


if __name__ == "__main__":
    sys.exit(main())
