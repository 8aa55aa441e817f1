"""Where the services' logs go: to standard error, which Ray keeps per process in `logs` of its session."""

import logging
import sys

from shared.config import LoggingConfig
from shared.logs import LOGGER, handler


def log_to_stderr(config: LoggingConfig) -> None:
    """Once per process, however often it is called.

    To the process's own standard error: Ray Serve may replace `sys.stderr` by its logger, which has a level
    and a form of its own (RAY_SERVE_LOG_TO_STDERR=0).
    """
    logger = logging.getLogger(LOGGER)
    if not logger.handlers:
        logger.addHandler(handler(config, sys.__stderr__ or sys.stderr))
        logger.setLevel(config.level)
        logger.propagate = False
