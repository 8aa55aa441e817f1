"""What every message is made of: MessagePack arrays; fields are append-only, new ones with a default."""

import msgspec


class Message(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False, tag=str.lower):
    """Base of everything that is a body of its own on the bus; the tag is the class name in lower case."""


class Part(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """Base of what only travels inside a Message."""
