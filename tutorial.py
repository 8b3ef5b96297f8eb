#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11,<3.15"
# dependencies = []
# ///
"""Set up the tutorial's environment in the folder .venv, then run one of its commands in there.

Standard library only, and no newer syntax than Python 3.6 knows: an old Python gets a sentence and
no traceback. (`uv run` reads the lines above: without them it would make .venv by itself.)

The state of .venv is one small file, STAMP. It is the first thing in the folder, says "unfinished"
(no `packages`) before anything else changes, and is replaced in one move when everything is in
place. Whatever stops the work in between, the next run sees an unfinished environment. One that was
never finished is made anew. One that was finished, in this place and with this Python, is never
emptied: where no package was changed yet, it is finished as it `was`; else what is missing or cut
short is installed over it.
"""

import argparse
import contextlib
import csv
import ctypes
import errno
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
# The same file tells `python -m helpers` which commands there are: a name, what runs it, its help.
COMMANDS = json.loads((ROOT / "src/helpers/data/commands.json").read_text(encoding="utf-8"))
USAGE = "usage: python3 tutorial.py COMMAND [options]\n\n{}\n\n{}".format(
    "\n".join(f"  {name:15} {text}" for name, (_, text) in COMMANDS.items()),
    "The first run makes the folder .venv and installs everything in it; later runs start at once.",
)
VENV = ROOT / ".venv"
DECISIVE = ("constraints.txt", "pyproject.toml")  # what decides the packages
STAMP, LOCK, LOG = VENV / "tutorial.json", VENV / "tutorial.lock", VENV / "tutorial-pip.log"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
PYTHONS = ("3.14", "3.13", "3.12", "3.11")
NEEDS_NO_PACKAGES = ("recipe", "explain", "notebooks", "reset", "capacity")
# What PyTorch's CUDA builds can use, best first, as its notes for release 2.13 say (2.14 is the
# last with cu126): the CUDA that the driver has to know, compute capabilities from and below, CPUs.
CUDA_BUILDS = (
    ("cu130", 13000, (7, 5), (99, 0), ("x86_64", "AMD64")),
    ("cu130", 13000, (8, 0), (99, 0), ("aarch64",)),
    ("cu126", 12000, (5, 0), (10, 0), ("x86_64", "AMD64")),
)
GPU_LEFT_OUT = (
    "No build of PyTorch can use this NVIDIA GPU (compute capability {}.{}) with this driver (for "
    "CUDA {}.{}), so .venv gets the CPU build. GPUs from 5.0 on work with driver 580, from 7.5 on "
    "with later ones as well: install it, delete .venv, and run this again."
)
# Free gigabytes needed while .venv is made. CPU build: measured on Linux, 1.9 at the peak; pip's
# cache adds up to 0.5. CUDA build: an estimate from its 2.7 GB of downloads (unpacked, as
# downloaded, and in pip's cache).
DISK_NEED = {"cpu": 2.5, "cuda": 12.0}

# (what pip or the system says, what to do about it)
FAILURES = (
    (
        r"No space left|Errno 28\b|WinError 112\b|Disk quota",
        "The disk is full. Free some space and run this again.",
    ),
    (
        r"Permission denied|Errno (1|13|30)\b|WinError (5|32)\b|Access is denied",
        "A file could not be read or written. Close what still uses .venv (notebooks, other "
        "terminals), make sure that this folder is yours to write in, and run this again.",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|certificate verify failed",
        "The package index showed a certificate that Python does not know, as where an office's "
        "proxy looks into the traffic. Ask for the proxy's certificate as a file, then "
        "`pip config set global.cert FILE`, and run this again.",
    ),
    (
        r"enable-long-paths|WinError 206\b|filename or extension is too long",
        "A path became longer than the 260 characters that Windows allows. Move this folder near "
        "to the drive's root (C:\\bert), or switch on long paths, and run this again.",
    ),
    (
        r"NewConnection|NameResol|name resolution|Failed to resolve|getaddrinfo|ConnectTimeout"
        r"|ReadTimeout|timed out|Network is unreachable|ProxyError|SSLError|RemoteDisconnected"
        r"|Connection (reset|aborted)|IncompleteRead",
        "The package index could not be reached. Check the network (behind a proxy, set "
        "HTTPS_PROXY) and run this again; or with `--offline DIR`, as the first time, if .venv "
        "comes from a bundle.",
    ),
    (
        r"No matching distribution found for torch\b",
        "The package index has no PyTorch for this machine and Python. An office's own index "
        "(`pip config list` names it) may lack it.",
    ),
    (
        r"WinError (126|1114)\b|DLL load failed|c10\.dll",
        "PyTorch does not start: Microsoft's Visual C++ runtime is missing or old. Install "
        "https://aka.ms/vc14/vc_redist.x64.exe, and run this again.",
    ),
)

# After a failure that changed nothing; True: only the test tools are missing.
AS_IT_WAS = {
    True: "The tutorial itself is as it was: `python3 tutorial.py lab` works. The test tools need "
    "a network, or `test --offline DIR`.",
    False: "This version of the tutorial needs other packages than .venv has. Nothing in there was "
    "changed: run this again with a network, or with `--offline DIR` and a bundle of this version. "
    "Until then, the version before works. So may this one with the packages that are there, "
    f"which nobody tested together: {PYTHON.relative_to(ROOT)} -m helpers lab",
}


class SetupError(Exception):
    """The work cannot go on; the message is a sentence that says why and what to do."""


def explain(said):
    """Turn what pip or the system said into a sentence that says what to do."""
    known = next((sentence for pattern, sentence in FAILURES if re.search(pattern, said)), None)
    return known or "It did not work. The last lines of what was said:\n" + "\n".join(
        said.strip().splitlines()[-8:]
    )


def environment(**extra):
    """Return the environment without variables that mix other Pythons into .venv."""
    unwanted = {"PYTHONHOME", "PYTHONPATH", "PIP_TARGET", "PIP_PREFIX", "__PYVENV_LAUNCHER__"}
    return {
        **{name: value for name, value in os.environ.items() if name not in unwanted},
        "PIP_USER": "0",
        **extra,
    }


def output(*command):
    """What a short command prints; an empty string if it does not run or fails."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        return (
            subprocess.check_output(command, stderr=subprocess.DEVNULL, env=environment())
            .decode()
            .strip()
        )
    return ""


def python_of(*command):
    """The version of an interpreter, such as "3.11"; an empty string if it does not run."""
    return output(*command, "-c", "import sys; print('{}.{}'.format(*sys.version_info))")


def python_problem(version):
    """The sentence for a Python that is too old or too new, None for one that will do."""
    if version in PYTHONS:
        return None
    names = [name for v in PYTHONS for name in (["python" + v], ["py", "-" + v])]
    # Asked for its version, since version managers put launchers on PATH that start nothing.
    found = next(
        (name for name in names if shutil.which(name[0]) and python_of(*name) in PYTHONS), None
    )
    way_out = (
        f"Run: {' '.join(found)} tutorial.py ..."
        if found
        else "Install one of them (on Windows: py install 3.13) and run tutorial.py with it, or "
        "let uv bring its own: uv run --python 3.13 tutorial.py lab"
    )
    return f"This tutorial needs Python 3.11 to 3.14, and this is Python {version}. {way_out}"


def machine_problem():
    """The sentence for a machine that PyTorch has no packages for, None for one that will do."""
    system, machine = platform.system(), platform.machine()
    problem = None
    way_out = "Use the tutorial through Binder or GitHub Codespaces (see docs/running.md)."
    if sys.maxsize < 2**32:
        problem, way_out = "This is a 32-bit Python.", "Install a 64-bit one. " + way_out
    elif system == "Windows" and sysconfig.get_platform() == "win-arm64":
        problem = "PyTorch has no packages for Windows on ARM."
        way_out = "It also runs Intel's Python: py install 3.13-64, then py -V:3.13-64 tutorial.py"
    elif system == "Darwin" and machine == "x86_64":
        problem = "PyTorch has no packages for Intel Macs any more."
        if output("sysctl", "-n", "sysctl.proc_translated") == "1":
            problem = "This is an Intel Mac's Python, and this Mac has Apple silicon."
            way_out = "Run tutorial.py with a Python for Apple silicon: python.org's is one."
    elif system == "Darwin" and int(platform.mac_ver()[0].split(".")[0]) < 14:
        problem = f"PyTorch needs macOS 14, and this is {platform.mac_ver()[0]}."
    elif system == "Linux":
        library, version = platform.libc_ver()
        if library != "glibc":
            problem = "PyTorch needs glibc, which Alpine and its kin do not have."
        elif [int(part) for part in version.split(".")[:2]] < [2, 28]:
            problem = f"PyTorch needs glibc 2.28 (Debian 10, RHEL 8), and this is {version}."
        elif machine not in ("x86_64", "aarch64"):
            problem = f"PyTorch has no packages for Linux on {machine}."
    return problem and f"{problem} {way_out}"


def project():
    """Return torch's version, and a fingerprint of everything that decides the packages."""
    import tomllib

    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    decisive = [
        table["build-system"],
        table["project"]["dependencies"],
        table["project"]["optional-dependencies"],
    ]
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    torch = re.search(r"^torch==(\S+)", pins, re.MULTILINE).group(1)
    return torch, hashlib.sha256((json.dumps(decisive) + pins).encode()).hexdigest()


def read_stamp():
    """Return what the last run left in STAMP: nothing if that was cut off, as without power."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return json.loads(STAMP.read_text(encoding="utf-8"))
    return {}


def write_stamp(**stamp):
    """Replace STAMP in one move."""
    STAMP.with_suffix(".new").write_text(json.dumps(stamp), encoding="utf-8")
    STAMP.with_suffix(".new").replace(STAMP)  # one move: a reader sees the old stamp or the new one


def intact(stamp):
    """Whether .venv was finished, in this place, and still has the Python it was made with."""
    return (
        bool(stamp.get("packages"))
        and stamp["root"] == str(ROOT)
        and python_of(str(PYTHON)) == stamp["python"]
    )


def has_pip():
    """Whether .venv has pip: one that uv made has none, nor has a Python that was updated."""
    return bool(output(str(PYTHON), "-P", "-c", "import pip; print(pip)"))


def package_folders():
    """Return the folders of .venv that hold packages."""
    return [*VENV.glob("lib/*/site-packages"), *VENV.glob("Lib/site-packages")]


def marks():
    """Return what changes whenever a package is installed or removed."""
    return [folder.stat().st_mtime_ns for folder in sorted(package_folders())]


def settled():
    """Return STAMP's state, after taking back a start that stopped before it changed a package."""
    stamp = read_stamp()
    if stamp.get("was") and stamp["marks"] == marks():
        stamp = stamp["was"]
        write_stamp(**stamp)
    return stamp


def is_whole(folder, name="", _="", size="cut short"):
    """Whether the file that a line of a RECORD names is there; what is compiled may be missing."""
    path = folder / name
    return name.endswith(".pyc") or (path.is_file() and size in ("", str(path.stat().st_size)))


def forget_incomplete_packages():
    """Take the records of packages that are not all there, so that pip installs them once more."""
    for folder in package_folders():
        for info in folder.glob("*.dist-info"):
            record, whole = info / "RECORD", False
            if record.is_file() and (info / "INSTALLER").is_file():  # pip writes these two last
                text = record.read_text(encoding="utf-8", errors="replace")
                whole = all(is_whole(folder, *row[:3]) for row in csv.reader(text.splitlines()))
            if not whole:
                shutil.rmtree(info)


def acquired(file):
    """Try to lock an open file. The lock ends with the last process that has the file open."""
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # A file system without locks: go on without.
        return error.errno in (errno.ENOLCK, errno.ENOTSUP)
    return True


def step(what, command, locked):
    """Run one long step: one line on the terminal, its output in LOG."""
    live, start = sys.stdout.isatty(), time.monotonic()
    print(what, end=" ..." if live else " ...\n", flush=True)
    # Downloads lie here: one disk to check, and a kill leaves nothing elsewhere.
    temporary = VENV / "tmp"
    temporary.mkdir(exist_ok=True)
    variables = environment(**dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary)))
    # pip holds the lock as well: if it outlives a start that was killed, the next one waits for it.
    inherited = {} if os.name == "nt" else {"pass_fds": [locked.fileno()]}
    with LOG.open("a+b") as log:
        before = log.seek(0, os.SEEK_END)
        silent = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        child = subprocess.Popen(command, cwd=ROOT, env=variables, **silent, **inherited)
        try:
            while child.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(1)
                if live:
                    print(f"\r{what} ... {time.monotonic() - start:.0f} s", end="", flush=True)
        except BaseException:  # Ctrl-C: nothing goes on behind the reader's back
            child.kill()
            child.wait()
            raise
        log.seek(before)
        said = log.read().decode(errors="replace")
    how = "failed" if child.returncode else "done"
    print(
        ("\r" if live else "") + f"{what} ... {how}, {time.monotonic() - start:.0f} s", flush=True
    )
    if child.returncode:
        raise SetupError(f"{explain(said)}\n(Everything that was said: {LOG})")
    shutil.rmtree(temporary, ignore_errors=True)


def nvidia_gpu():
    """Return the CUDA version that NVIDIA's driver knows and the best compute capability.

    Such as (13000, (8, 9)); None without a driver or a GPU.
    """
    with contextlib.suppress(OSError):
        cuda = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
        version, count, device, major, minor = (ctypes.c_int() for _ in range(5))
        if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
            return None
        cuda.cuDriverGetVersion(ctypes.byref(version))
        found = []
        for index in range(count.value):
            cuda.cuDeviceGet(ctypes.byref(device), index)
            # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
            cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
            cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
            found.append((major.value, minor.value))
        return (version.value, max(found)) if found else None


def torch_build(gpu, machine):
    """Return the build of torch for what `nvidia_gpu` found; "cpu" where no other will do."""
    version, capability = gpu or (0, (0, 0))
    for build, needed, lowest, above, machines in CUDA_BUILDS:
        if version >= needed and lowest <= capability < above and machine in machines:
            return build
    return "cpu"


def answers(url, seconds=4):
    """Whether a page answers in time; in a process, as looking up a name has no time-out."""
    probe = [
        sys.executable,
        "-P",
        "-c",
        f"import urllib.request as r; r.urlopen({url!r}, timeout={seconds})",
    ]
    with contextlib.suppress(subprocess.TimeoutExpired):
        return subprocess.run(probe, stderr=subprocess.DEVNULL, timeout=seconds).returncode == 0
    return False


def torch_source(version, system, build, answers):
    """Return where a build of torch comes from: what to say, and pip's arguments.

    `answers` tells whether an address can be reached.

    PyPI's own torch is a CUDA 13 build on Linux and a CPU build on Windows and macOS.
    """
    index = "https://download.pytorch.org/whl/" + build
    what = "CPU build, 0.2 GB" if build == "cpu" else "CUDA build, about 2.7 GB"
    if build == ("cu130" if system == "Linux" else "cpu"):
        return what, [f"torch=={version}"]
    if answers(index + "/torch/"):
        return what, [f"torch=={version}+{build}", "--extra-index-url", index]
    return "the build that pip finds, 0.2 to 2.7 GB", [f"torch=={version}"]


def bundle_target(python):
    """The name that this machine has in a bundle, with a Python such as "3.13"."""
    # `machine_problem` has refused every other machine.
    names = {"Windows": "windows-x86_64", "Darwin": "macos-arm64"}
    return names.get(platform.system(), "linux-" + platform.machine()) + "-" + python


def file_problem(path, digest):
    """What is wrong with a file of a bundle, whose list has this SHA-256; None if nothing is."""
    if digest is None:
        return "is not on its list: delete it"
    if not path.is_file():
        return "is missing"
    try:
        with path.open("rb") as file:
            right = hashlib.file_digest(file, "sha256").hexdigest() == digest
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None if right else "is damaged"


def check_bundle(bundle, python):
    """Compare each file that is needed of a bundle with its list; return the wheels' folder."""
    listing = bundle / "SHA256SUMS"
    if not listing.is_file():
        raise SetupError(
            f"{bundle} holds no finished bundle: there is no SHA256SUMS. Name the folder that "
            "`tutorial.py bundle` made, or leave out --offline if .venv was finished before."
        )
    print("Checking the bundle ...", flush=True)
    text = listing.read_text(encoding="utf-8", errors="replace")
    sums = {name: digest for digest, _, name in (x.partition("  ") for x in text.splitlines())}
    has = sorted({name.split("/")[1] for name in sums if name.startswith("wheels/")})
    if not has or not text.endswith("\n"):
        raise SetupError(
            f"{listing} is damaged. Copy it from another stick, or make the bundle again."
        )
    target = bundle_target(python)
    if target not in has:
        raise SetupError(
            f"The bundle in {bundle} is for {', '.join(has)}, and this is {target}. Start "
            "tutorial.py with a Python that the bundle has, or ask for a bundle for this one."
        )
    if any(file_problem(ROOT / name, sums.get("tutorial/" + name)) for name in DECISIVE):
        raise SetupError(
            f"The bundle in {bundle} is for another version of the tutorial than {ROOT}. Copy its "
            "own folder `tutorial` to your disk, and start tutorial.py in there."
        )
    folder = f"wheels/{target}/"
    needed = [name for name in sums if name.startswith(("models/", folder))]
    # macOS leaves files with a dot in front on sticks; pip takes none of them.
    places = (folder + "[!.]*", "models/[!.]*/[!.]*/[!.]*")
    there = [path.relative_to(bundle).as_posix() for one in places for path in bundle.glob(one)]
    found = {name: file_problem(bundle / name, sums.get(name)) for name in {*needed, *there}}
    problems = sorted(f"{name} {problem}" for name, problem in found.items() if problem)
    if problems:
        raise SetupError(
            "The bundle in {} is not as it was made, so nothing was installed:\n{}\nCopy what is "
            "missing or damaged from another stick, or make the bundle again.".format(
                bundle, "\n".join(problems[:10])
            )
        )
    return bundle / folder


def make_venv(build, locked):
    """Throw away what an unfinished start left in .venv and make it from nothing."""
    if not (importlib.util.find_spec("ensurepip") and importlib.util.find_spec("venv")):
        package = f"python3.{sys.version_info[1]}-venv"
        raise SetupError(
            "This Python has no venv or no ensurepip module. "
            f"On Debian and Ubuntu: apt install {package}"
        )
    for path in VENV.iterdir():
        # Without its stamp the folder would no longer be known as ours.
        if path not in (STAMP, LOCK):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    need, free = DISK_NEED["cpu" if build == "cpu" else "cuda"], shutil.disk_usage(VENV).free / 1e9
    if free < need:
        raise SetupError(
            f"Too little disk: .venv needs {need:.1f} GB free while it is made; "
            f"there are {free:.1f} GB."
        )
    # tutorial.py may have been started with the very .venv that is replaced.
    base = getattr(sys, "_base_executable", sys.executable)
    step("Making .venv", [base, "-m", "venv", str(VENV)], locked)


def pins_without_cuda():
    """The text of constraints.txt without what torch itself pins, for CUDA 12 otherwise than 13."""
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    return re.sub(r"(?m)^(cuda-|nvidia-|triton=).*\n", "", pins)


def install(torch, build, test, wheels, locked):
    """Install torch in its build, then the other packages, with test tools if `test` is set.

    Everything comes from the folder `wheels` if there is one, else from the package index.
    """
    python = [str(PYTHON), "-P", "-c"]
    if not has_pip():
        step("Adding pip", [str(PYTHON), "-m", "ensurepip"], locked)
    kept = VENV / "tutorial-constraints.txt"
    kept.write_text(pins_without_cuda(), encoding="utf-8")
    pip = [str(PYTHON), "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
    pip += ["-c", str(kept)]
    if wheels:
        pip += ["--no-index", "--find-links", str(wheels)]
    installed = output(*python, "import importlib.metadata as m; print(m.version('torch'))")
    if installed.split("+")[0] != torch:
        what, arguments = "CPU build, from the bundle", [f"torch=={torch}"]
        if not wheels:
            what, arguments = torch_source(torch, platform.system(), build, answers)
        step(f"Installing PyTorch {torch} ({what})", [*pip, *arguments], locked)
    what, extra = ("packages and test tools", "[test]") if test else ("packages", "")
    step(f"Installing the other {what} (0.3 GB)", [*pip, "-e", "." + extra], locked)
    step("Starting PyTorch once", [*python, "import torch"], locked)


def ready(stamp, packages, test):
    """Whether .venv has these packages, with test tools if `test` is set."""
    return stamp.get("packages") == packages and stamp["test"] >= test and intact(stamp)


def ensure(test, bundle=None):
    """Make sure that .venv has the pinned environment, with test tools if `test` is set.

    With a bundle, packages, models and texts come from there, and the network is not asked.
    """
    torch, packages = project()
    if ready(read_stamp(), packages, test) and not bundle:
        return
    problem = machine_problem()
    if problem:
        raise SetupError(problem)
    VENV.mkdir(exist_ok=True)
    with LOCK.open("a") as locked:  # one start at a time changes .venv
        if not acquired(locked):
            print(
                "Another start of tutorial.py is at work here; waiting for it (Ctrl-C gives up).",
                flush=True,
            )
            while not acquired(locked):
                time.sleep(0.3)
        stamp = settled()
        if not ready(stamp, packages, test):  # else done by the start that was waited for
            make(torch, packages, stamp, test, bundle, locked)
        elif bundle:
            check_bundle(bundle, stamp["python"])
        if bundle:
            copy = "import sys; sys.path.append('docs'); import bundle; bundle.unpack(sys.argv[1])"
            step("Copying models and texts", [str(PYTHON), "-c", copy, str(bundle)], locked)


def make(torch, packages, stamp, test, bundle, locked):
    """Make .venv, or bring it up to date; STAMP says "unfinished" until everything is there."""
    begun = {LOCK.name, STAMP.name, STAMP.stem + ".new"}
    ours = stamp.get("ours", {path.name for path in VENV.iterdir()} <= begun)
    was = stamp if stamp.get("packages") else stamp.get("was")  # as it was finished last
    keep = intact(was or {}) if ours else python_of(str(PYTHON)) in PYTHONS
    if not (ours or keep):
        raise SetupError(
            f"{VENV} was not made by tutorial.py and has no Python 3.11 to 3.14. Move it away."
        )
    python = python_of(str(PYTHON)) if keep else "{}.{}".format(*sys.version_info)
    wheels = bundle and check_bundle(bundle, python)
    state = {"ours": ours, "root": str(ROOT), "test": test or stamp.get("test", False)}
    if was and not (keep or bundle) and has_pip():  # as in a folder that was moved
        ask = [str(PYTHON), "-m", "pip", "index", "versions", "torch"]
        step("Asking for packages before .venv is made anew", ask, locked)
    unchanged = marks() if was is stamp else stamp.get("marks")
    write_stamp(packages=None, was=was if keep else None, marks=unchanged, **state)
    gpu = None if bundle else nvidia_gpu()  # a bundle has the CPU build
    build = torch_build(gpu, platform.machine())
    if gpu and build == "cpu":
        cuda = gpu[0] // 1000, gpu[0] % 1000 // 10  # 12080 is CUDA 12.8
        print(GPU_LEFT_OUT.format(*gpu[1], *cuda), flush=True)
    if not keep:
        make_venv(build, locked)
    elif ours and was is not stamp:
        forget_incomplete_packages()
    try:
        install(torch, build, state["test"], wheels, locked)
    except SetupError as error:
        if not intact(settled()):
            raise
        raise SetupError(f"{error}\n{AS_IT_WAS[was['packages'] == packages]}") from None
    write_stamp(packages=packages, python=python_of(str(PYTHON)), **state)


def offline(arguments):
    """Take `--offline DIR` out of a command's arguments; return the others, and DIR or None.

    With it, pip and the hub no longer look at anything that was set up for a network.
    """
    if not any(argument.split("=")[0] == "--offline" for argument in arguments):
        return arguments, None
    parser = argparse.ArgumentParser("tutorial.py", add_help=False, allow_abbrev=False)
    parser.add_argument("--offline", metavar="DIR", type=Path)
    given, rest = parser.parse_known_args(arguments)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        del os.environ[name]
    os.environ.update(PIP_CONFIG_FILE=os.devnull, HF_HUB_OFFLINE="1")
    return rest, given.offline.resolve()


def hand_over(python, arguments, **extra):
    """Become `python -m helpers`; on Windows run it and return its exit code."""
    # -P: a file called json.py in the reader's folder must not be taken for Python's own.
    command, variables = [str(python), "-P", "-m", "helpers", *arguments], environment(**extra)
    sys.stdout.flush()
    if os.name != "nt":
        os.execve(command[0], command, variables)
    # Ctrl-C reaches the child as well, and the child decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return subprocess.call(command, env=variables)


def main(arguments):
    """Make the environment if needed, then run a command in it; returns the exit status."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0
    problem = python_problem("{}.{}".format(*sys.version_info))
    if problem or arguments[0] not in COMMANDS:
        print(problem or f"{arguments[0]} is no command.\n\n{USAGE}", file=sys.stderr)
        return 1 if problem else 2
    if arguments[0] in NEEDS_NO_PACKAGES:
        return hand_over(sys.executable, arguments, PYTHONPATH=str(ROOT / "src"))
    # So that `step` ends its child.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    asked = {"-h", "--help", "--help-all"} & {*arguments[1:]}
    try:
        if asked and not ready(read_stamp(), project()[1], arguments[0] == "test"):
            print(f"usage: python3 tutorial.py {arguments[0]} ...\n\n{COMMANDS[arguments[0]][1]}\n")
            print("It can list its options once .venv is ready; docs/commands.md has an overview.")
            return 0
        arguments, bundle = offline(arguments)
        ensure(arguments[0] == "test", bundle)
        return hand_over(PYTHON, arguments)
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        said = explain(str(error))
        print(said if str(error) in said else f"{said}\n({error})", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. Run the same command again to go on.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
