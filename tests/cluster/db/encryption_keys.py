"""A sealer, as a gateway has one."""

from __future__ import annotations

import time

from toolway.gateway.sealing import Sealer


def a_sealer(letter: bytes = b"k") -> Sealer:
    return Sealer(letter * 32, time.time)
