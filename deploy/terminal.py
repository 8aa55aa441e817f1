"""What commands write of the server's text, and of their own."""

import re
import sys

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""All but tab and line feed. A terminal obeys them: a model's text must not move the cursor or set titles."""


def write(text: str) -> None:
    """The model's text, at once."""
    sys.stdout.write(_CONTROL.sub("\ufffd", text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def say(text: str) -> None:
    """What is not the model's goes to standard error."""
    sys.stdout.flush()
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
