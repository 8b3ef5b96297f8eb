"""Keep libraries' advice off the page."""

import contextlib
import logging
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps the quantizers' advice off the page (ONNX Runtime's goes to the root logger), and their warnings."""
    before, handler = logging.root.manager.disable, logging.NullHandler()
    logging.disable(logging.WARNING)
    logging.root.addHandler(
        handler
    )  # without one, the first remark would set up a handler that stays
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.root.removeHandler(handler)
        logging.disable(before)
