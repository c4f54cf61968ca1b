"""One request of one client, as everything behind the wire sees it, whatever era the client speaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from toolway.gateway.principals import Principal
from toolway.gateway.view import View
from toolway.model import Asks, Era, Json
from toolway.protocol.eras import ASK_CAPABILITIES, log_rank

Tell = Callable[[str, Json], None]


def _nobody(method: str, params: Json) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Forwarded:
    """What another node says of a call that it brings."""

    call: str  # its id
    key: str | None  # its idempotency key
    endpoint: str  # where the client asked


@dataclass(slots=True)
class Visit:
    principal: Principal
    view: View
    endpoint: str  # "", a group's name, or `server/name`
    era: Era
    capabilities: Json = field(default_factory=dict)  # what this client can be asked
    tell: Tell = _nobody  # a notification that belongs to this request
    asks: Asks | None = None  # a client of the handshake era, who can be asked while the call runs
    log_level: str | None = None  # from which level on
    headers: Mapping[str, str] | None = None  # of a modern HTTP request, for arguments that are mirrored there
    key: str | None = None  # the `Idempotency-Key` header
    wants_log: bool = False  # also where it named no level
    # For a trace of it:
    request_id: str | int | None = None
    version: str = ""  # of the protocol
    transport: str = "tcp"  # or pipe
    asked: str = ""  # for which tool, in the client's words
    forwarded: Forwarded | None = None  # where another node brings it

    @property
    def askable(self) -> bool:
        """Whether the client can be asked anything."""
        return any(name in self.capabilities for name in ASK_CAPABILITIES.values())

    def hears(self, level: object) -> bool:
        """Whether the client wants log messages of this level."""
        if self.log_level is None:
            return self.wants_log
        return log_rank(level) <= log_rank(self.log_level)


def meta_of(params: Json) -> Json:
    meta = params.get("_meta")
    return meta if isinstance(meta, dict) else {}


def can_answer(capabilities: Json, method: str, params: Json) -> bool:
    """Whether a client that declared these can be asked this."""
    name = ASK_CAPABILITIES.get(method)
    declared = capabilities.get(name) if name is not None else None
    if not isinstance(declared, dict):
        return False
    if name == "elicitation" and params.get("mode") == "url":
        return "url" in declared
    if name == "elicitation":
        return not declared or "form" in declared
    if name == "sampling":
        return "tools" not in params or "tools" in declared
    return True
