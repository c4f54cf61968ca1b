"""What is sealed in the record: of any size, under a key of its own that the key of the cluster seals.

It is bound to where it lies: put into the place of another, it does not open.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from typing import Any, Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from toolway.cluster.passes import Sealer

FOR_EVER: Final = 100 * 366 * 86_400.0  # seconds
_NONCE: Final = 12


class Unsealable(Exception):
    """It was sealed with another key, for another place, or is damaged."""


class Envelopes:
    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def seal(self, value: Any, *place: str) -> str:
        key, nonce = os.urandom(32), os.urandom(_NONCE)
        body = nonce + AESGCM(key).encrypt(nonce, msgspec.json.encode(value), None)
        return f"{self._sealer.seal(_kind(place), key.hex(), FOR_EVER)}.{base64.b64encode(body).decode()}"

    def open(self, text: str, *place: str) -> Any:
        """Raises `Unsealable`."""
        sealed, _, body = text.partition(".")
        key = self._sealer.open(_kind(place), sealed)
        if not isinstance(key, str):
            raise Unsealable(f"what the record holds of {' '.join(place)} does not open with the key of this cluster")
        try:
            data = base64.b64decode(body, validate=True)
            return msgspec.json.decode(AESGCM(bytes.fromhex(key)).decrypt(data[:_NONCE], data[_NONCE:], None))
        except (InvalidTag, ValueError, binascii.Error):
            raise Unsealable(f"what the record holds of {' '.join(place)} is damaged") from None


def _kind(place: tuple[str, ...]) -> str:
    return json.dumps(["record", *place])
