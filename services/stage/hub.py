"""From a model's id on the Hugging Face hub to a local folder.

Imports the hub's client only when it is needed.
"""

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shared.errors import CheckpointError

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_DESCRIPTION = ["*.json", "*.jinja", "tokenizer*"]
_WEIGHTS = ["*.safetensors"]
_NEVER = ["*/*", "consolidated*"]
"""Other formats of the same weights."""


def is_id(path: str) -> bool:
    """Whether it has the form `organisation/name`."""
    return _ID.fullmatch(path) is not None


def fetch(model_id: str, *, weights: bool, progress: Callable[[str, float | None], None]) -> Path:
    """The folder in the client's cache, whose place and token are its own settings (HF_HOME, HF_TOKEN).

    What is there is used without asking the hub for something newer. weights: those, too.
    Safe to call from several processes at once. Raises CheckpointError.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    patterns = [*_DESCRIPTION, *(_WEIGHTS if weights else [])]
    wanted: dict[str, Any] = {"allow_patterns": patterns, "ignore_patterns": _NEVER}
    try:
        return Path(snapshot_download(model_id, local_files_only=True, **wanted))
    except LocalEntryNotFoundError:
        pass  # nothing, or not all of it
    except HFValidationError as error:
        raise _failed(model_id, error) from None
    progress(f"downloading {model_id}", 0.0)
    try:
        bar = _bar(lambda fraction: progress(f"downloading {model_id}", fraction))
        folder = snapshot_download(model_id, tqdm_class=bar, **wanted)
    except OSError as error:  # of the network, of the hub (no such model, no access) or of the disk
        raise _failed(model_id, error) from error
    progress(f"downloaded {model_id}", 1.0)
    return Path(folder)


def _failed(model_id: str, error: Exception) -> CheckpointError:
    cause = next((line for line in str(error).splitlines() if line.strip()), repr(error))
    return CheckpointError(
        f"model.path: there is no folder {model_id}, and the Hugging Face hub does not give it: {cause} - "
        "give a local folder with config.json and *.safetensors, or download the model once on a machine "
        "that reaches the hub (with HF_TOKEN, if it is gated) and take its cache along"
    )


def _bar(report: Callable[[float], None]) -> Any:
    """What the client counts bytes with; it shows nothing by itself."""
    from tqdm import tqdm

    base: Any = tqdm

    class Bar(base):
        furthest = 0.0

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **{**options, "file": io.StringIO(), "mininterval": 0.5})

        def display(self, *_: Any, **__: Any) -> None:
            if self.unit == "B" and self.total and self.n / self.total > Bar.furthest:
                Bar.furthest = self.n / self.total  # there is a bar for what came in, and one for the disk
                report(min(1.0, Bar.furthest))

    return Bar
