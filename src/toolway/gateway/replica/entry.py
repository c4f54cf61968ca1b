"""Where calls of other nodes come in: who brings one shows that it is a node, and for each call whose it is.

The head of a request carries the credential of the node, which opens nothing by itself; the body carries the pass
(`cluster/passes.py`), which is for one call and taken once. What the caller may do was decided where he came in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from toolway.cluster.passes import Inspector, Pass, Refusal, Sealer
from toolway.gateway.codes import DENIED, MOVED, OVERLOADED, PASS_KEY
from toolway.gateway.failures import Failure
from toolway.gateway.principals import Principal
from toolway.gateway.view import View
from toolway.gateway.visit import Forwarded, meta_of
from toolway.model import Json

NODE: Final = "node"  # the kind of our sealed credentials
PREFIX: Final = "twn_"
LASTS: Final = 24 * 3600.0  # seconds
_WHY: Final[dict[Refusal, tuple[int, str]]] = {
    "forged": (DENIED, "the pass of this call is not one of this cluster, or has expired"),
    "elsewhere": (DENIED, "the pass of this call is for another node"),
    "replayed": (DENIED, "the pass of this call was taken before"),
    "busy": (OVERLOADED, "too many passes were taken in the last seconds"),
    "moved": (MOVED, "this node does not own the server"),
}


def credential(sealer: Sealer, sender: str, to: str) -> str:
    return PREFIX + sealer.seal(NODE, [sender, to], LASTS)


class NodeDoor:
    """Knows the nodes of our cluster by what they show."""

    def __init__(self, id: str, sealer: Sealer) -> None:
        self._id = id
        self._sealer = sealer

    def who(self, token: str) -> Principal | None:
        """The node that shows this credential, which is for us alone."""
        if not token.startswith(PREFIX):
            return None
        found: Any = self._sealer.open(NODE, token.removeprefix(PREFIX))
        if not isinstance(found, list) or len(found) != 2 or found[1] != self._id:
            return None
        sender = str(found[0])
        return Principal(f"node:{sender}", f"the node {sender}", f"node:{sender}", scopes=(), node=True)


class Entry:
    """`view` is what there is at an endpoint of a server."""

    def __init__(self, inspector: Inspector, view: Callable[[str], View | None]) -> None:
        self._inspector = inspector
        self._view = view

    def take(self, server: str, params: Json, view: View | None) -> tuple[Principal, View, Forwarded]:
        """Whose call it is, what he sees, and what must be known of it. Raises `Failure`: then nothing was done."""
        text = meta_of(params).get(PASS_KEY)
        found: Pass | Refusal = self._inspector.take(text) if isinstance(text, str) else "forged"
        if isinstance(found, Pass) and found.server != server:
            found = "elsewhere"
        if not isinstance(found, Pass):
            code, why = _WHY[found]
            raise _refused(code, why)
        view = view if view is not None else self._view(f"server/{server}")
        if view is None:
            raise _refused(MOVED, "this node does not know the server yet")
        who = found.principal or f"node:{found.sender}"
        principal = Principal(who, found.name or who, found.caller)
        return principal, view, Forwarded(found.call, found.key, found.endpoint)


def _refused(code: int, why: str) -> Failure:
    return Failure(code, why, {"executed": "no", "certainty": "C0", "retryable": code != DENIED, "attempts": 0})
