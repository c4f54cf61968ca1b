"""Heavy messages are decoded in a thread, which lets the event loop run again and again meanwhile."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from toolway.protocol import eras, wire

BREATH: Final = 0.0002  # seconds: long enough for the loop to wake up and take its turn


async def parse_heavy(frame: bytes, method: str) -> wire.Message:
    """The message that came in answer to `method`. Raises `BadMessage`."""
    return await asyncio.to_thread(wire.parse_gently, frame, eras.ITEMS_OF.get(method, ""), _breathe)


async def decode_heavy(data: bytes) -> Any:
    """Any JSON. Raises `ValueError`."""
    return await asyncio.to_thread(wire.decode_gently, data, "", _breathe)


def _breathe() -> None:
    time.sleep(BREATH)
