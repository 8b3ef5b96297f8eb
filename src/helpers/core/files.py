"""Atomic writes, file hashes, and the package's folders."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[3]  # the checkout
DATA = Path(__file__).parents[1] / "data"


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
