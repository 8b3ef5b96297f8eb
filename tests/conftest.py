"""Shared by all tests: helpers is imported before torch, since it sets what torch and transformers read at import."""

import helpers  # noqa: F401


def pytest_collection_modifyitems(items):
    """The longest files first: with two workers, what is left over for the end is then small."""
    longest = ["test_notebooks.py", "test_solutions.py"]
    items.sort(key=lambda item: longest.index(item.path.name) if item.path.name in longest else len(longest))
