"""`toolway` of a version to come, as far as others can see it: it says more than this one knows.

Every pass and every piece of news has a field that nobody knows, and there are news of a kind that nobody knows.
"""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from toolway import _version
from toolway.cluster import bus, passes

_version.__version__ = "99.0.0"


def _issue(sealer: passes.Sealer, what: passes.Pass) -> str:
    said = msgspec.to_builtins(msgspec.structs.replace(what, once=secrets.token_hex(8)))
    return sealer.seal(passes.KIND, {**said, "weather": ["sunny", None]}, passes.LASTS)


_tell = bus.Bus.tell


async def _tell_more(self: bus.Bus, kind: str, body: Any, *more: Any, **named: Any) -> bool:
    await _tell(self, "weather", {"tomorrow": {"rain": True}})
    return await _tell(self, kind, {**body, "weather": [1, 2]}, *more, **named)


passes.issue = _issue
bus.Bus.tell = _tell_more  # type: ignore[method-assign]

if __name__ == "__main__":
    from toolway.cli import main

    main()
