"""`skipjoin key`: make an API key, and the entry of `gateway.keys_file` that lets it in."""

import argparse
import secrets
import sys
from typing import Any

import msgspec
import yaml

from services.gateway.keys import Key, digest
from shared.errors import ConfigError


def register(commands: Any) -> None:
    command = commands.add_parser(
        "key",
        help="make an API key",
        description="Prints a new key on standard error, once, and on standard output the entry to put into "
        "gateway.keys_file, which holds only its digest.",
        epilog="example: skipjoin key alice --requests-per-minute 60 >> keys.yaml",
    )
    command.set_defaults(run=_run)
    command.add_argument("name", help="whose key it is; logs show it")
    command.add_argument("--tenant", help="whose share its requests count against")
    command.add_argument("--requests-per-minute", type=int, metavar="N")
    command.add_argument("--concurrent-requests", type=int, metavar="N")
    command.add_argument("--admin", action="store_true", help="may list and cancel the requests of all keys")


def _run(options: argparse.Namespace) -> int:
    secret = "sj-" + secrets.token_urlsafe(32)
    fields = {
        "name": options.name,
        "sha256": digest(secret),
        "tenant": options.tenant,
        "requests_per_minute": options.requests_per_minute,
        "concurrent_requests": options.concurrent_requests,
        "admin": options.admin,
    }
    try:
        key = msgspec.convert(fields, Key)
    except msgspec.ValidationError as error:
        raise ConfigError(f"key: {error}") from None
    sys.stderr.write(f"key, shown only now: {secret}\n")
    sys.stdout.write(yaml.safe_dump([msgspec.to_builtins(key)], sort_keys=False))
    return 0
