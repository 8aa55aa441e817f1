"""`skipjoin complete`: go on from a text."""

import argparse
import sys
from contextlib import closing
from typing import Any

from deploy.connection import Connection, add_connection_arguments
from deploy.sampling import add_sampling_arguments, sampling_fields
from deploy.terminal import write


def register(commands: Any) -> None:
    command = commands.add_parser(
        "complete",
        help="go on from a text",
        description="Prints the text that follows PROMPT, as it is generated.",
        epilog="examples: skipjoin complete 'Once upon a time' --max-tokens 50; "
        "skipjoin complete - --temperature 0 < prompt.txt",
    )
    command.set_defaults(run=_run)
    command.add_argument("prompt", metavar="PROMPT", help="the text; - reads it from standard input")
    command.add_argument("--echo", action="store_true", help="print PROMPT before what follows it")
    add_sampling_arguments(command)
    add_connection_arguments(command)


def _run(options: argparse.Namespace) -> int:
    """Raises Refused. 130 if Ctrl-C ended it."""
    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    connection = Connection(options)
    body = {"model": connection.model(), "prompt": prompt, **sampling_fields(options)}
    if options.echo:
        body["echo"] = True
    try:
        with closing(connection.stream("/v1/completions", body)) as chunks:
            for chunk in chunks:
                write(chunk["choices"][0]["text"])
    except KeyboardInterrupt:
        return 130
    finally:
        write("\n")
    return 0
