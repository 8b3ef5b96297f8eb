"""The browser that tests of JupyterLab drive: find one on this machine, or get one."""

import os
import shutil
import subprocess
import sys

from helpers.core import files

# Names on PATH, and where browsers lie that are not on it.
NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "microsoft-edge",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Microsoft Edge.app/Contents/MacOS/Microsoft Edge",
    "C:/Program Files/Google/Chrome/Application/chrome.exe",
    "C:/Program Files (x86)/Microsoft/Edge/Application/msedge.exe",
)
OWN = files.ROOT / ".venv" / "browsers"  # playwright's download
OWN_NAMES = ("chrome", "chrome.exe", "*.app/Contents/MacOS/*")
MISSING = (
    "JupyterLab in a browser was not tested, since there is no Chrome, Chromium or Edge here: "
    "install one, or set CHROMIUM to its path"
)


def find() -> str | None:
    """Return the path of a browser that starts: CHROMIUM's if that is set, or None."""
    found = [shutil.which(name) for name in (os.environ.get("CHROMIUM", ""), *NAMES) if name]
    for name in OWN_NAMES:
        found += map(str, OWN.glob(f"chromium-*/chrome-*/{name}"))
    return next((path for path in found if path and _starts(path)), None)


def _starts(path: str) -> bool:
    """Whether it is more than a stub: Ubuntu's asks for a snap, a download may lack libraries."""
    return not sys.platform.startswith("linux") or _succeeds([path, "--version"])


def provide() -> None:
    """Let playwright get a browser if there is none."""
    if not find():
        print("Getting a browser for the tests of JupyterLab ...", flush=True)
        download = [sys.executable, "-m", "playwright", "install", "chromium"]
        _succeeds(download, PLAYWRIGHT_BROWSERS_PATH=str(OWN))


def _succeeds(command: list[str], **environment: str) -> bool:
    silent = {"stdin": subprocess.DEVNULL, "capture_output": True, "check": False}
    try:
        done = subprocess.run(command, env=os.environ | environment, timeout=600, **silent)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
