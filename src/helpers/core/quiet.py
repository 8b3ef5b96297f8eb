"""Keep libraries' advice out of a notebook."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet(stdout: bool = False) -> Iterator[None]:
    """Silence warnings and log messages below errors, and what is printed if asked to."""
    before, handler = logging.root.manager.disable, logging.NullHandler()
    logging.disable(logging.WARNING)
    logging.root.addHandler(handler)  # without one, the first remark would set up one that stays
    printed = contextlib.redirect_stdout(io.StringIO()) if stdout else contextlib.nullcontext()
    try:
        with warnings.catch_warnings(), printed:
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.root.removeHandler(handler)
        logging.disable(before)
