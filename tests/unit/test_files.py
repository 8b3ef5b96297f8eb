"""A file is replaced as a whole, or stays as it was."""

from helpers.core import files

import pytest


def test_the_new_file_takes_the_old_ones_place_at_the_end(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")
    with files.atomic_write(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_file_and_no_half_one(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")

    def fill_the_disk():
        with files.atomic_write(str(path)) as part:
            part.write_text("n")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fill_the_disk()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
