"""The last answers that an owner gave, for callers whose connection was lost when they came. Bounded.

Two generations, so that keeping an answer costs next to nothing: the older one is forgotten as a whole.
"""

from __future__ import annotations

from typing import Final

MOST: Final = 2 * 1024 * 1024  # bytes of a generation
LARGEST: Final = 256 * 1024  # bytes of one answer
LASTS: Final = 3.0  # seconds, at the least, unless there is more than fits


class Kept:
    def __init__(self) -> None:
        self._answers: dict[str, bytes] = {}
        self._before: dict[str, bytes] = {}
        self._bytes = 0
        self._since = 0.0

    def __contains__(self, reply: str) -> bool:
        return reply in self._answers or reply in self._before

    def add(self, reply: str, answer: bytes, now: float) -> None:
        """Of a large answer only that it was given."""
        if len(answer) > LARGEST:
            answer = b""
        self._bytes += len(reply) + len(answer)
        if self._bytes > MOST or now - self._since > LASTS:
            self._before = self._answers if now - self._since <= 2 * LASTS else {}
            self._answers, self._bytes, self._since = {}, len(reply) + len(answer), now
        self._answers[reply] = answer

    def find(self, reply: str) -> bytes | None:
        return self._answers.get(reply) or self._before.get(reply) or None
