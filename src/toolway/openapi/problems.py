"""What can be wrong with a document, or with the arguments of a call."""

from __future__ import annotations


class BadDocument(Exception):
    """A document that cannot be read. `reason` is for a person, `fix` is what they can do."""

    def __init__(self, reason: str, *, fix: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.fix = fix


class BadArguments(ValueError):
    """Arguments of which no request can be made. Nothing was sent; the text is for whoever calls, a model too."""
