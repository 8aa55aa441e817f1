"""`skipjoin top`: the live board in a terminal."""

import argparse
import contextlib
import os
import queue
import select
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from deploy.connection import Connection, Refused, add_connection_arguments
from deploy.top_frame import frame

_PATH = "/v1/board"
_LONGEST_WAIT_S = 10.0
_KEYS_EVERY_S = 0.1


def register(commands: Any) -> None:
    command = commands.add_parser(
        "top",
        help="watch the queues, KV blocks, rates and latencies of a running server",
        description="Follows the live board until q or Ctrl-C. With API keys it needs an admin's.",
        epilog="example: skipjoin top --once",
    )
    command.set_defaults(run=_run)
    command.add_argument("--once", action="store_true", help="print one frame; so it does without a terminal")
    add_connection_arguments(command)


def _run(options: argparse.Namespace) -> int:
    """Raises Refused."""
    connection, console = Connection(options), Console(highlight=False)
    if options.once or not console.is_terminal:
        console.print(frame(connection.ask("GET", f"{_PATH}?once=true"), connection.url, console.width))
        return 0
    follower = _Follower(connection)
    threading.Thread(target=follower.run, daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt), _keys() as pressed:
        _follow(follower, console, connection.url, pressed)
    follower.stop()
    return 0


def _follow(follower: "_Follower", console: Console, url: str, pressed: "_Pressed") -> None:
    """Raises Refused where trying again would not help."""
    board: Any = None
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while not pressed("q", _KEYS_EVERY_S):
            for news in follower.news():
                if isinstance(news, Refused):
                    raise news
                board, lost = (board, news) if isinstance(news, str) else (news, "")
                shown: RenderableType = frame(board, url, console.width, console.height, lost=lost)
                live.update(shown if board else Text(lost), refresh=True)


class _Follower:
    """Reads the stream in a thread of its own, so that keys are noticed meanwhile, and comes back to it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._news: queue.SimpleQueue[dict[str, Any] | str | Refused] = queue.SimpleQueue()
        self._stopped = threading.Event()

    def run(self) -> None:
        seconds = 0.0
        while not self._stopped.wait(seconds):
            why = "the server has ended the stream"
            try:
                for snapshot in self._connection.watch(_PATH):
                    seconds = 0.0
                    self._news.put(snapshot)
            except Refused as error:
                if error.status in (401, 403):
                    self._news.put(error)
                    return
                why = str(error)
            seconds = min(_LONGEST_WAIT_S, 2 * seconds or 1.0)
            self._news.put(f"not live: {why}; trying again in {seconds:.0f} s")

    def news(self) -> Iterator[dict[str, Any] | str | Refused]:
        """Snapshots, why there are none, or what ends it, since the last call."""
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._news.get_nowait()

    def stop(self) -> None:
        self._stopped.set()


class _Pressed:
    """Whether a key was pressed; without a terminal none ever is."""

    def __init__(self, terminal: bool) -> None:
        self._terminal = terminal

    def __call__(self, key: str, seconds: float) -> bool:
        """Waits for up to `seconds` for any key."""
        ready, _, _ = select.select([sys.stdin] if self._terminal else [], [], [], seconds)
        # Not through sys.stdin: what that reads ahead, `select` sees no more.
        return bool(ready) and key.encode() in os.read(sys.stdin.fileno(), 64)


@contextlib.contextmanager
def _keys() -> Iterator[_Pressed]:
    """Keys as they are pressed, without Enter and without an echo."""
    if not sys.stdin.isatty():
        yield _Pressed(False)
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield _Pressed(True)
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
