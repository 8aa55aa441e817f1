"""The choices of one request, generated side by side: `n` answers to each of its prompts."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from services.gateway.streaming import Generation, Piece

Indexed = tuple[int, Piece]


class Choices:
    """generations: one per choice, by index; `n` per prompt

    prompt_tokens: each prompt counted once (as OpenAI does), however many answers it gets
    """

    def __init__(self, generations: Sequence[Generation], n: int) -> None:
        self._generations = generations
        self._n = n
        self.prompt_tokens = sum(each.prompt_tokens for each in generations[::n])

    def __len__(self) -> int:
        return len(self._generations)

    @property
    def completion_tokens(self) -> int:
        return sum(each.completion_tokens for each in self._generations)

    @property
    def cached_tokens(self) -> int:
        """Of `prompt_tokens`, those not computed: as far as each prompt's first answer knows."""
        return sum(each.cached_tokens for each in self._generations[:: self._n])

    @property
    def detokenize_s(self) -> float:
        return sum(each.detokenize_s for each in self._generations)

    @property
    def finishes(self) -> tuple[str, ...]:
        return tuple(each.finish or "" for each in self._generations)

    async def pieces(self) -> AsyncGenerator[Indexed]:
        """Pieces with their choice's index. The first has no text and says that every choice was accepted:
        what can be refused is refused before it. Use it with `aclosing`; leaving early aborts the unfinished.

        Raises like `Engine.generate`, for the first choice that fails.
        """
        if len(self._generations) == 1:
            async with aclosing(self._generations[0].pieces()) as pieces:
                async for piece in pieces:
                    yield 0, piece
            return
        # Bounded, so that a slow client makes waiting tokens travel together instead of piling up here.
        queue: asyncio.Queue[Indexed | Exception] = asyncio.Queue(len(self._generations))
        tasks = [
            asyncio.create_task(_feed(index, each, queue)) for index, each in enumerate(self._generations)
        ]
        try:
            async for item in self._merged(queue):
                yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _merged(self, queue: "asyncio.Queue[Indexed | Exception]") -> AsyncGenerator[Indexed]:
        accepted: set[int] = set()
        early: list[Indexed] = []
        unfinished = len(self._generations)
        while unfinished:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            index, piece = item
            unfinished -= piece.finish is not None
            if len(accepted) == len(self._generations):
                yield item
            elif index in accepted:
                early.append(item)
            else:
                accepted.add(index)
                if len(accepted) == len(self._generations):
                    yield item
                    for each in early:
                        yield each


async def _feed(index: int, generation: Generation, queue: "asyncio.Queue[Indexed | Exception]") -> None:
    try:
        async with aclosing(generation.pieces()) as pieces:
            async for piece in pieces:
                await queue.put((index, piece))
    except Exception as error:  # raised again by whoever reads the queue
        await queue.put(error)
