"""`toolway` of a later version, as other nodes see it: it sends more than this version knows.

Every call token and every message has a field that this version does not know, and some messages have an unknown kind.
"""

from __future__ import annotations

from typing import Any

import msgspec

from toolway import _version
from toolway.cluster import bus, node_auth

_version.__version__ = "99.0.0"


def _issue(sealer: node_auth.CallTokenSealer, token: node_auth.CallToken) -> str:
    fields = [*msgspec.to_builtins(token), ["sunny", None]]  # a call token is an array; new fields are at its end
    return sealer.seal(node_auth.CALL_TOKEN_KIND, fields, node_auth.CALL_TOKEN_LIFETIME_S)


_publish = bus.Bus.publish


async def _publish_more(self: bus.Bus, kind: str, body: Any, *more: Any, **named: Any) -> bool:
    await _publish(self, "weather", {"tomorrow": {"rain": True}})
    return await _publish(self, kind, {**body, "weather": [1, 2]}, *more, **named)


node_auth.issue_call_token = _issue
bus.Bus.publish = _publish_more  # type: ignore[method-assign]

if __name__ == "__main__":
    from toolway.cli import main

    main()
