"""API keys: who may ask, whose share it counts against, and how much at once.

The file holds digests only, so that reading it gives nobody access; no key is ever logged.
"""

import hmac
from collections import deque
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import msgspec
import yaml
from msgspec import Meta

from shared.clock import Clock
from shared.errors import ConfigError, Overloaded

_MINUTE_S = 60.0
_BUSY_RETRY_S = 1.0
"""Nobody knows when another answer of the same key will end."""


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An entry of `gateway.keys_file`.

    name: what logs and the requests API call its owner
    sha256: of the key, hexadecimal; `skipjoin key` makes both
    tenant: whose share its requests count against; default: the request's `user`
    requests_per_minute: answers begun in any 60 seconds; concurrent_requests: answers under way
    admin: may list, see and cancel the requests of all keys
    """

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    tenant: Annotated[str, Meta(min_length=1)] | None = None
    requests_per_minute: Annotated[int, Meta(ge=1)] | None = None
    concurrent_requests: Annotated[int, Meta(ge=1)] | None = None
    admin: bool = False


def digest(key: str) -> str:
    """What the file holds of a key: the digest of 256 random bits needs neither salt nor stretching."""
    return sha256(key.encode()).hexdigest()


def load(path: Path) -> list[Key]:
    """The entries of a YAML or JSON file. Raises ConfigError naming the entry at fault."""
    try:
        keys = msgspec.convert(yaml.safe_load(path.read_text()), list[Key])
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"gateway.keys_file: {path} cannot be read ({error})") from None
    except msgspec.ValidationError as error:
        raise ConfigError(f"gateway.keys_file: {path} is no list of keys: {error}") from None
    if not keys:
        raise ConfigError(f"gateway.keys_file: {path} has no keys; make one with `skipjoin key NAME`")
    for field in ("name", "sha256"):
        values = [getattr(key, field) for key in keys]
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise ConfigError(f"gateway.keys_file: {path}: {field} {twice} occurs twice")
    return keys


class Access:
    """One key and its use in this process; pure.

    An answer counts from `begin` to `end`.
    """

    def __init__(self, key: Key, clock: Clock) -> None:
        self.key = key
        self._clock = clock
        self._begun: deque[float] = deque()
        self._open = 0

    def begin(self) -> None:
        """Raises Overloaded beyond the key's limits."""
        name, limit, now = self.key.name, self.key.concurrent_requests, self._clock.now()
        if limit is not None and self._open >= limit:
            raise Overloaded(
                f"key {name!r} has {self._open} requests under way, its limit is {limit} "
                "(concurrent_requests)",
                _BUSY_RETRY_S,
            )
        limit = self.key.requests_per_minute
        if limit is not None:
            while self._begun and now - self._begun[0] >= _MINUTE_S:
                self._begun.popleft()
            if len(self._begun) >= limit:
                raise Overloaded(
                    f"key {name!r} has begun {len(self._begun)} requests in the last minute, its limit is "
                    f"{limit} (requests_per_minute)",
                    self._begun[0] + _MINUTE_S - now,
                )
            self._begun.append(now)
        self._open += 1

    def end(self) -> None:
        self._open -= 1


class Keyring:
    """All keys of the file."""

    def __init__(self, keys: Sequence[Key], clock: Clock) -> None:
        self._entries = [(key.sha256.encode(), Access(key, clock)) for key in keys]

    def find(self, key: str) -> Access | None:
        """Compares with every entry, equal or not, so that the time tells nothing."""
        offered = digest(key).encode()
        found: Access | None = None
        for known, access in self._entries:
            if hmac.compare_digest(known, offered):
                found = access
        return found
