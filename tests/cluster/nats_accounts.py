"""What an operator of NATS hands out: accounts and users as JWTs, and `.creds` files."""

from __future__ import annotations

import base64
import binascii
import json
import time
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_PREFIX: Final = {"operator": 14 << 3, "account": 0, "user": 20 << 3}
_SEED: Final = 18 << 3


def _checked(data: bytes) -> str:
    whole = data + binascii.crc_hqx(data, 0).to_bytes(2, "little")
    return base64.b32encode(whole).decode().rstrip("=")


def _url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class Identity:
    def __init__(self, kind: str, name: str) -> None:
        self._key = Ed25519PrivateKey.generate()
        self.kind = kind
        self.name = name
        self.public = _checked(bytes([_PREFIX[kind]]) + self._key.public_key().public_bytes_raw())

    @property
    def seed(self) -> str:
        prefix = _PREFIX[self.kind]
        head = bytes([_SEED | prefix >> 5, (prefix & 31) << 3])
        return _checked(head + self._key.private_bytes_raw())

    def vouch_for(self, other: Identity, **claims: Any) -> str:
        """A JWT of another."""
        head = {"typ": "JWT", "alg": "ed25519-nkey"}
        body = {
            "jti": other.public[:20],
            "iat": int(time.time()),
            "iss": self.public,
            "name": other.name,
            "sub": other.public,
            "nats": {"type": other.kind, "version": 2, **claims},
        }
        text = ".".join(_url(json.dumps(each).encode()) for each in (head, body))
        return f"{text}.{_url(self._key.sign(text.encode()))}"


LIMITS: Final = {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "conn": -1, "leaf": -1}


def operated(folder: Path, names: list[str]) -> tuple[Path, dict[str, Path]]:
    """The configuration of a server with an account of each name, and a `.creds` file for a user of each."""
    operator = Identity("operator", "test")
    accounts = {name: Identity("account", name) for name in names}
    creds = {}
    for name, account in accounts.items():
        user = Identity("user", f"gateway of {name}")
        jwt = account.vouch_for(user, pub={}, sub={}, subs=-1, data=-1, payload=-1)
        creds[name] = folder / f"{name}.creds"
        creds[name].write_text(
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
        )
    known = "\n".join(f"  {each.public}: {operator.vouch_for(each, limits=LIMITS)}" for each in accounts.values())
    text = f"operator: {operator.vouch_for(operator)}\nresolver: MEMORY\nresolver_preload {{\n{known}\n}}\n"
    (folder / "nats.conf").write_text(text)
    return folder / "nats.conf", creds
