"""Shared by all tests: helpers is imported before torch, since it sets what torch and transformers read at import."""

import helpers  # noqa: F401
