"""Files that are there as a whole or not at all, and what is in one.

The lessons' helpers store through `whole`.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[3]  # the checkout
DATA = Path(__file__).parents[1] / "data"


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """A path beside `path` to write to.

    It becomes `path` at the end of the block, and is gone if the block fails.

    Whoever reads `path` sees the old file or the new one; a kill leaves at most the other, ending
    in ".part".
    """
    part = Path(f"{path}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def sha256(path: str | Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
