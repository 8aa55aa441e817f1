"""Log lines: their fields in text and in JSON, one line each, and where they go."""

import io
import json
import logging
import subprocess
import sys

import pytest

from shared.config import LoggingConfig, parse
from shared.errors import ConfigError
from shared.logs import handler


def written(config: LoggingConfig, message: str, **fields: object) -> str:
    stream = io.StringIO()
    logger = logging.Logger("skipjoin.gateway")
    logger.addHandler(handler(config, stream))
    try:
        raise ValueError("inside")
    except ValueError:
        logger.info(message, extra={"fields": fields}, exc_info="traced" in fields)
    return stream.getvalue()


def test_text_has_the_fields_behind_the_message() -> None:
    line = written(LoggingConfig(), "request finished", id="a", cause='two "words"', none=None, jobs=["1f"])
    time, rest = line.split(" ", 1)
    assert time.endswith("Z") and len(time) == len("2026-01-31T12:00:00.123Z")
    fields = r'id=a cause="two \"words\"" jobs="[\"1f\"]"'
    assert rest == f"INFO skipjoin.gateway: request finished {fields}\n"


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_a_client_sends_cannot_begin_a_line(form: str) -> None:
    config = parse({"logging": {"format": form}}).logging
    assert written(config, "request received", key="a\nERROR b\r\x1b[1m\u2028").count("\n") == 1
    assert len(written(config, "x", key="a\u2028b\x85c").splitlines()) == 1


def test_json_is_an_object_a_line() -> None:
    config = LoggingConfig(format="json")
    line = json.loads(written(config, "request finished", request_id="é", jobs=["1f"], none=None))
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "INFO", "logger": "skipjoin.gateway", "message": "request finished", "request_id": "é",
        "jobs": ["1f"],
    }  # fmt: skip
    traced = json.loads(written(config, "failed", traced=True))
    assert "ValueError: inside" in traced["traceback"]


def test_keys_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"logging\.format"):
        parse({"logging": {"format": "xml"}})
    with pytest.raises(ConfigError, match="log_level"):
        parse({"log_level": "INFO"})


def test_they_go_to_the_processs_own_standard_error_once_and_from_its_level_on() -> None:
    """Also where something has replaced sys.stderr, as Ray Serve may."""
    program = (
        "import io, logging, sys\n"
        "from deploy.logs import log_to_stderr\n"
        "from shared.config import LoggingConfig\n"
        "sys.stderr = io.StringIO()\n"
        "for _ in range(2): log_to_stderr(LoggingConfig(level='WARNING', format='json'))\n"
        "log = logging.getLogger('skipjoin.stage0')\n"
        "log.info('too little'), log.warning('enough')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["message"] == "enough"
