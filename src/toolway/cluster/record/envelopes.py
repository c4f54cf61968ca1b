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
from toolway.errors import ConfigError

FOR_EVER: Final = 100 * 366 * 86_400.0  # seconds
_NONCE: Final = 12


class Unsealable(ConfigError):
    """It was sealed with another key, for another place, or is damaged."""

    def __init__(self, place: tuple[str, ...], evidence: str) -> None:
        super().__init__(
            f"what the database of the cluster holds does not open: {' '.join(place)}",
            evidence=evidence,
            fix="start this gateway with the key that the others have: --cluster-key-file",
            code="E-CLUSTER-KEY",
        )


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
            raise Unsealable(place, "it was sealed with another key, or for another place")
        try:
            data = base64.b64decode(body, validate=True)
            return msgspec.json.decode(AESGCM(bytes.fromhex(key)).decrypt(data[:_NONCE], data[_NONCE:], None))
        except (InvalidTag, ValueError, binascii.Error):
            raise Unsealable(place, "it is damaged") from None


def _kind(place: tuple[str, ...]) -> str:
    return json.dumps(["record", *place])
