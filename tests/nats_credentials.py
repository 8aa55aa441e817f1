"""What `nsc` would make: an operator, an account and a user, each signed by the one before."""

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import nkeys


class Identity:
    def __init__(self, prefix: int) -> None:
        self.seed: bytes = nkeys.encode_seed(os.urandom(32), prefix)
        self.key = nkeys.from_seed(bytearray(self.seed))
        self.name: str = self.key.public_key.decode()

    def issue(self, subject: "Identity", kind: str, name: str) -> str:
        """A JWT about `subject`, signed by this identity."""
        claims: dict[str, Any] = {
            "iat": 1_700_000_000,
            "iss": self.name,
            "name": name,
            "sub": subject.name,
            "nats": {"type": kind, "version": 2} | _LIMITS[kind],
        }
        claims["jti"] = base64.b32encode(hashlib.sha256(json.dumps(claims).encode()).digest()).decode()[:52]
        parts = [{"typ": "JWT", "alg": "ed25519-nkey"}, claims]
        text = ".".join(_encoded(json.dumps(part).encode()) for part in parts)
        return f"{text}.{_encoded(self.key.sign(text.encode()))}"


_NO_LIMIT = {"subs": -1, "data": -1, "payload": -1}
_LIMITS: dict[str, dict[str, Any]] = {
    "operator": {},
    "account": {
        "limits": _NO_LIMIT | {"imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
    },
    "user": _NO_LIMIT | {"pub": {}, "sub": {}},
}


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def operator_mode(folder: Path) -> tuple[str, Path]:
    """Settings of a server that takes JWTs, and the .creds file of a user that it knows."""
    operator, account, user = (
        Identity(prefix)
        for prefix in (nkeys.PREFIX_BYTE_OPERATOR, nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_USER)
    )
    settings = (
        f"operator: {operator.issue(operator, 'operator', 'test')}\n"
        f"resolver: MEMORY\nresolver_preload: {{ {account.name}: "
        f"{operator.issue(account, 'account', 'skipjoin')} }}\n"
    )
    file = folder / "user.creds"
    file.write_text(
        f"-----BEGIN NATS USER JWT-----\n{account.issue(user, 'user', 'skipjoin')}\n"
        "------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
    )
    return settings, file
