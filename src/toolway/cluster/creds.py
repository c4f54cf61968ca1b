"""A `.creds` file of NATS: who we are (a JWT), and the seed of the key with which we show it.

The library of NATS would do this with a second library of cryptography and one that has no wheel; signing a nonce with
the one that we have is shorter.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_BLOCK: Final = re.compile(rb"-{3,}BEGIN ([A-Z ]+)-{3,}\s*([A-Za-z0-9_.=-]+)\s*-{3,}END \1-{3,}")
_SEED: Final = 18 << 3  # the first five bits of a seed: it begins with an S
_LARGEST: Final = 64 * 1024


def options_of(file: str | os.PathLike[str]) -> dict[str, Any]:
    """What a connection to NATS is made with. The file is read anew for each, so it may be exchanged. Raises `OSError`,
    and `ValueError` where it holds something else."""
    _parts(file)
    return {"user_jwt_cb": lambda: bytearray(_parts(file)[0]), "signature_cb": lambda nonce: _signer(file)(nonce)}


def _signer(file: str | os.PathLike[str]) -> Callable[[str], bytes]:
    key = Ed25519PrivateKey.from_private_bytes(_raw(_parts(file)[1]))
    return lambda nonce: base64.b64encode(key.sign(nonce.encode()))


def _parts(file: str | os.PathLike[str]) -> tuple[bytes, bytes]:
    """The JWT and the seed."""
    with Path(file).open("rb") as opened:
        found = dict(_BLOCK.findall(opened.read(_LARGEST)))
    try:
        jwt, seed = found[b"NATS USER JWT"], found[b"USER NKEY SEED"]
    except KeyError:
        raise ValueError("it is no .creds file of NATS: a JWT and a seed stand in one") from None
    _raw(seed)
    return jwt, seed


def _raw(seed: bytes) -> bytes:
    """The 32 bytes of a key: base32 of two bytes of prefix, the key, and a checksum."""
    try:
        data = base64.b32decode(seed + b"=" * (-len(seed) % 8))
    except binascii.Error:
        data = b""
    good = len(data) == 36 and data[0] & 0xF8 == _SEED
    if not good or binascii.crc_hqx(data[:-2], 0) != int.from_bytes(data[-2:], "little"):
        raise ValueError("the seed in the .creds file of NATS is damaged")
    return data[2:-2]
