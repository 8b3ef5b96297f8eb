"""The texts: labelled review snippets, unlabelled and scientific sentences."""

import csv
from pathlib import Path

from helpers.core import files
from helpers.models.catalogue import find
from helpers.models.download import obtain

import pandas as pd


def reviews() -> pd.DataFrame:
    """Return the movie-review snippets: id (int), text, rating, label (1 = positive), split.

    Ratings are means of 20 people, from -4 to 4; snippets within 0.5 of neutral are left out, and
    10,072 remain. A row belongs to "test" when its id is divisible by 5 (2,012 rows, 49.9 %
    positive; 49.6 % overall), so the split depends on nothing but the row. Source: Hutto and
    Gilbert, VADER, ICWSM 2014. SST-2 was built from the same snippets: a model trained on SST-2
    has seen these tests.

    Raises:
        AssetError: If the texts cannot be had.
    """
    asset = find("reviews")
    origin = obtain(asset)
    table = _rated(origin.folder / list(asset.package.files)[-1])  # the others are for `unlabelled`
    table = table[table["rating"].abs() >= 0.5].reset_index(drop=True)
    table["label"] = (table["rating"] > 0).astype(int)
    table["split"] = ["test" if row % 5 == 0 else "train" for row in table["id"]]
    table = table[["id", "text", "rating", "label", "split"]]
    table.attrs["provenance"] = origin
    return table


def unlabelled() -> pd.DataFrame:
    """Return about 13,100 sentences whose ratings no model learns: id (str), text, rating, source.

    They are the tweets, product reviews and newspaper sentences of the archive with the reviews.
    """
    asset = find("reviews")
    origin, parts = obtain(asset), []
    for file in list(asset.package.files)[:-1]:
        table = _rated(origin.folder / file).astype({"id": str})
        parts.append(
            table[["id", "text", "rating"]].assign(source=file.removesuffix("_GroundTruth.txt"))
        )
    table = pd.concat(parts, ignore_index=True)
    table.attrs["provenance"] = origin
    return table


def _rated(path: Path) -> pd.DataFrame:
    """Read one file of the archive: id, rating, text."""
    as_it_is = {"quoting": csv.QUOTE_NONE, "na_filter": False, "encoding": "utf-8"}
    return pd.read_csv(path, sep="\t", names=["id", "rating", "text"], **as_it_is)


def science_sentences() -> pd.DataFrame:
    """Return 300 sentences written for this tutorial, with invented results.

    Columns: id, field (6), role (3), text.
    """
    return pd.read_csv(files.DATA / "science.tsv", sep="\t", quoting=csv.QUOTE_NONE)
