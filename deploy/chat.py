"""`skipjoin chat`: a conversation in the terminal."""

import argparse
import contextlib
import importlib
from collections.abc import Generator
from contextlib import closing
from typing import Any

from deploy.connection import Connection, Refused, add_connection_arguments
from deploy.sampling import add_sampling_arguments, sampling_fields
from deploy.terminal import say, write

_HELP = """\
/new      begin a new conversation
/again    ask the last question again
/system TEXT  a system message for what follows; without TEXT none
/help     this
/quit     leave; so does Ctrl-D. Ctrl-C stops an answer, not the program
A line that ends in \\ goes on in the next one."""


def register(commands: Any) -> None:
    command = commands.add_parser(
        "chat",
        help="chat in the terminal",
        description="A conversation with the served model. Ctrl-C stops an answer, Ctrl-D leaves.",
        epilog="example: skipjoin chat --temperature 0 --system 'Answer in one sentence.'",
    )
    command.set_defaults(run=_run)
    command.add_argument("--system", metavar="TEXT", help="system message (default: the model's own)")
    add_sampling_arguments(command)
    add_connection_arguments(command)


def _run(options: argparse.Namespace) -> int:
    """Raises Refused if the server is not there at the start; later on it is only said."""
    connection = Connection(options)
    chat = Chat(connection, connection.model(), options.system, sampling_fields(options))
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")  # editing and history of lines, where Python has it
    say(f"{chat.model} at {connection.url}. /help tells what there is.")
    while True:
        try:
            line = _read()
        except EOFError:
            write("\n")
            return 0
        except KeyboardInterrupt:
            write("\n")  # what was typed is dropped, as in a shell
            continue
        if line.startswith("/"):
            if not chat.obey(line):
                return 0
        elif line.strip():
            chat.ask(line)


class Chat:
    """The conversation so far. An answer that was stopped or failed half-way stays as far as it came."""

    def __init__(
        self, connection: Connection, model: str, system: str | None, sampling: dict[str, Any]
    ) -> None:
        self.model = model
        self._connection = connection
        self._system = system
        self._sampling = sampling
        self._turns: list[dict[str, str]] = []

    def obey(self, line: str) -> bool:
        """Carry out a line that begins with /. False: leave."""
        name, _, rest = line.partition(" ")
        match name:
            case "/quit" | "/exit":
                return False
            case "/new":
                self._turns.clear()
                say("a new conversation")
            case "/system":
                self._system = rest.strip() or None
            case "/again":
                self._again()
            case "/help":
                say(_HELP)
            case _:
                say(f"{name} is not known here; /help tells what there is")
        return True

    def ask(self, question: str) -> None:
        self._turns.append({"role": "user", "content": question})
        said: list[str] = []
        try:
            with closing(self._answer()) as answer:
                for text in answer:
                    said.append(text)
                    write(text)
            write("\n")
        except KeyboardInterrupt:
            say("\n(stopped)")
        except Refused as refused:
            if said:
                write("\n")
            say(f"skipjoin: {refused}")
        if said:
            self._turns.append({"role": "assistant", "content": "".join(said)})
        else:
            self._turns.pop()  # nothing was answered: as if it had not been asked

    def _answer(self) -> Generator[str]:
        system = [{"role": "system", "content": self._system}] if self._system else []
        body = {"model": self.model, "messages": [*system, *self._turns], **self._sampling}
        finish = None
        with closing(self._connection.stream("/v1/chat/completions", body)) as chunks:
            for chunk in chunks:
                for choice in chunk["choices"]:
                    finish = choice["finish_reason"]
                    if choice["delta"].get("content"):
                        yield choice["delta"]["content"]
        if finish == "length":
            say(" […]")

    def _again(self) -> None:
        last = next((i for i in reversed(range(len(self._turns))) if self._turns[i]["role"] == "user"), None)
        if last is None:
            say("nothing was asked yet")
            return
        question = self._turns[last]["content"]
        del self._turns[last:]
        self.ask(question)


def _read() -> str:
    lines = [input("> ")]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(input("… "))
    return "\n".join(lines)
