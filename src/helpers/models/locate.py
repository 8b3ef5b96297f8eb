"""Find models and texts on this machine, and say where they came from."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from helpers.core.files import sha256
from helpers.models import catalogue
from helpers.models.catalogue import Asset, Package

import platformdirs


@dataclass(frozen=True)
class Provenance:
    """Where a model, tokenizer or text came from; `str()` is one line."""

    name: str
    kind: str  # "hub", "package" or "stand-in"
    source: str  # the repository@revision, the package==version or what the stand-in is
    digest: str | None = None  # SHA-256 of the main file, if it was checked on this machine
    note: str = ""  # why a better source was not used
    folder: Path | None = field(default=None, compare=False, repr=False)  # None for a stand-in

    def __str__(self) -> str:
        source = f"({self.source})" if self.kind == "stand-in" else self.source
        line = f"{catalogue.CATALOGUE[self.name].title}: {self.kind} {source}"
        if self.digest:
            line += f", SHA-256 {self.digest[:8]}… checked"
        return f"{line}; {self.note}" if self.note else line


def root() -> Path:
    """Return the folder for all files: `BERT_ASSETS`, else one in the user's cache."""
    chosen = os.environ.get("BERT_ASSETS")
    default = platformdirs.user_cache_path("bert-on-any-device", appauthor=False)
    return Path(chosen or default).expanduser().absolute()


def snapshots(asset: Asset) -> list[Path]:
    """Return where the hub's cache layout has an asset; new downloads go to the first."""
    from huggingface_hub import constants

    caches = [Path(constants.HF_HUB_CACHE)]
    if os.environ.get("BERT_ASSETS"):
        caches.insert(0, root() / "hub")
    folder = f"models--{asset.hub_id.replace('/', '--')}/snapshots/{asset.revision}"
    return [cache / folder for cache in caches]


def package_folder(package: Package) -> Path:
    """Return where the files of a package are kept."""
    return root() / "packages" / f"{package.name}-{package.version}"


def locate(asset: Asset, check: bool = True) -> Provenance | None:
    """Find an asset on this machine; `check` compares the SHA-256 of a package's files."""
    for folder in snapshots(asset) if asset.hub_id else []:
        if all((folder / file).is_file() for file in asset.files):
            source = f"{asset.hub_id}@{asset.revision[:8]}"
            return Provenance(asset.name, "hub", source, folder=folder)
    package = asset.package
    if not package:
        return None
    folder = package_folder(package)
    for file, digest in package.files.items():
        if not (folder / file).is_file() or (check and sha256(folder / file) != digest):
            return None
    main = list(package.files.values())[-1] if check else None
    source = f"{package.name}=={package.version}"
    return Provenance(asset.name, "package", source, main, folder=folder)
