"""What a node seals and signs with."""

from __future__ import annotations

import time

from toolway.cluster.db.integrity import Integrity
from toolway.gateway.sealing import Sealer


def a_sealer(letter: bytes = b"k") -> Sealer:
    return Sealer(letter * 32, time.time)


def an_integrity(letter: bytes = b"k") -> Integrity:
    """As a process has it that was just started: it has seen nothing yet."""
    return Integrity(letter * 32)
