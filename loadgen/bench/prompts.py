"""Prompts of an exact number of tokens, of running text.

Tokenizers split text at spaces first, so that a word's tokens hardly depend on its neighbours. The tokens of
each word are therefore counted once, in place, and a prompt is a passage whose words sum up; what the server
adds (a first token, a chat template) is found out from the usage that it reports, and taken off. Every prompt
begins with words of its own: a server that keeps prefixes finds none.
"""

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from loadgen.bench.prose import PROSE
from shared.errors import ConfigError

_WORDS = re.compile(r"\w+|[^\w\s]")

HEAD = "The"
OWN_WORDS = 4
"""Drawn anew for each prompt: with 200 words one in 10^9 pairs has the same."""


class Counter(Protocol):
    """Counts tokens of a text. `name` says by what."""

    name: str

    async def count(self, text: str) -> int: ...


class Vocabulary(msgspec.Struct, frozen=True):
    """sizes: tokens of each word of the prose, in its order
    units: words of one token
    counter: what counted
    """

    words: tuple[str, ...]
    sizes: tuple[int, ...]
    units: tuple[str, ...]
    counter: str


class FileCounter:
    """By a tokenizer.json, or the folder that has one. Raises ConfigError if it cannot be read."""

    def __init__(self, path: str) -> None:
        from tokenizers import Tokenizer

        file = Path(path).expanduser()
        file = file / "tokenizer.json" if file.is_dir() else file
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing more specific
            raise ConfigError(f"tokenizer: {file} cannot be read ({error})") from None
        self.name = str(file)

    async def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False))


class WordCounter:
    """Takes words and punctuation for a token each, where nobody can be asked; the server's usage tells how
    far off that is.
    """

    name = "words"

    async def count(self, text: str) -> int:
        return len(_WORDS.findall(text))


async def learn(counter: Counter) -> Vocabulary:
    """Count each word of the prose behind another."""
    words = tuple(PROSE.split())
    base = await counter.count(HEAD)
    sizes = {word: await counter.count(f"{HEAD} {word}") - base for word in dict.fromkeys(words)}
    units = tuple(word for word, size in sizes.items() if size == 1 and word.isalpha())
    if not units:
        raise ConfigError(f"tokenizer: {counter.name} has no English word of one token; use token_ids: false")
    return Vocabulary(words, tuple(sizes[word] for word in words), units, counter.name)


class Prompts:
    """added: tokens of the server's own in every prompt, see `Vocabulary`; set once they are known."""

    def __init__(self, vocabulary: Vocabulary, added: int = 0) -> None:
        self._vocabulary = vocabulary
        self.added = added

    def text(self, tokens: int, seed: Sequence[object], *, following: bool = False) -> str:
        """A prompt of so many tokens, `added` included; the shortest there is, if that is too few.

        following: it goes on where other text ends, so that it begins with a space and nothing is added
        """
        draw = random.Random(repr(tuple(seed)))
        own = [draw.choice(self._vocabulary.units) for _ in range(OWN_WORDS)]
        words = own if following else [HEAD, *own]
        room = tokens - (0 if following else self.added)
        words = words[: max(1, room)]
        left = room - len(words)
        place = draw.randrange(len(self._vocabulary.words))
        while left > 0:
            word, size = self._vocabulary.words[place], self._vocabulary.sizes[place]
            if size > left:
                word, size = draw.choice(self._vocabulary.units), 1
            words.append(word)
            left -= size
            place = (place + 1) % len(self._vocabulary.words)
        return (" " if following else "") + " ".join(words)
