"""Atomic writes, file hashes, the package's folders, and how its commands are run there."""

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[3]  # the checkout; a package that was installed alone has none
DATA = Path(__file__).parents[1] / "data"


def in_own_environment() -> bool:
    """Return whether this Python is that of .venv, which tutorial.py makes and keeps."""
    return Path(sys.prefix).resolve() == (ROOT / ".venv").resolve()


def command(name: str) -> str:
    """Return how a command is run in this environment: by tutorial.py only in its own."""
    python = "py" if os.name == "nt" else "python3"
    return f"{python} tutorial.py {name}" if in_own_environment() else f"python -m helpers {name}"


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it replaces `path` on success and is deleted else.

    A reader sees the old file or the new one. A kill leaves at most the temporary one (".part").
    """
    part = Path(f"{path}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_system_file(path: Path) -> str:
    """Return the text of a small system file, "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
