"""`skipjoin` commands as their users run them: processes, some of them at a terminal."""

import asyncio
import codecs
import contextlib
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator
from typing import Self

COMMAND = [sys.executable, "-m", "deploy.cli"]
LONGEST_S = 60.0


async def run(*arguments: str, typed: str = "", **environment: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "COLUMNS": "200", **environment},
    )
    async with asyncio.timeout(LONGEST_S):
        out, err = await process.communicate(typed.encode())
    return process.returncode or 0, out.decode(), err.decode()


class Terminal:
    """What a program at a terminal shows, and keys pressed there."""

    def __init__(self, process: asyncio.subprocess.Process, end: int) -> None:
        self.process = process
        self.shown = ""
        self._end = end
        # What is read may end within a character: readline writes its prompt byte by byte.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._news = asyncio.Event()

    @classmethod
    @contextlib.asynccontextmanager
    async def of(cls, *arguments: str, **environment: str) -> AsyncIterator[Self]:
        end, inside = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            *COMMAND, *arguments, stdin=inside, stdout=inside, stderr=inside, start_new_session=True,
            env={**os.environ, "TERM": "dumb", **environment},
        )  # fmt: skip
        os.close(inside)
        terminal = cls(process, end)
        loop = asyncio.get_running_loop()
        loop.add_reader(end, terminal._read)
        try:
            yield terminal
        finally:
            loop.remove_reader(end)
            if process.returncode is None:
                process.kill()
            await process.wait()
            os.close(end)

    def _read(self) -> None:
        try:
            self.shown += self._decoder.decode(os.read(self._end, 65536))
            self.shown = self.shown.replace("\r\n", "\n")
        except OSError:  # the program has closed its end
            asyncio.get_running_loop().remove_reader(self._end)
        self._news.set()

    async def until(self, text: str) -> str:
        """Wait for `text`; all up to there is returned and looked at no more."""
        try:
            async with asyncio.timeout(LONGEST_S):
                while text not in self.shown:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"{text!r} was not shown, but {self.shown!r}") from None
        before, _, self.shown = self.shown.partition(text)
        return before + text

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def interrupt(self) -> None:
        """As Ctrl-C does to the program in the foreground."""
        self.process.send_signal(signal.SIGINT)

    async def interrupt_line(self, prompt: str) -> None:
        """Ctrl-C while a line is typed. Python notices one that comes between its prompt and its waiting for
        keys only with the next key, so that it is pressed again, as people do.
        """
        while prompt not in self.shown:
            self._news.clear()
            self.interrupt()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), 5)
        await self.until(prompt)
