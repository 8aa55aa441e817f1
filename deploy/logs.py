"""Where the services' logs go: to standard error, which Ray keeps per process."""

import logging
import sys


def log_to_stderr() -> None:
    """Once per process, however often it is called."""
    logger = logging.getLogger("skipjoin")
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
