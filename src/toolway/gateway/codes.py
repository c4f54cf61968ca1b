"""What whoever talks to a gateway of ours must know of it: the codes of its errors, and keys of its own.

The codes are outside the ranges that the protocol reserves. The comment on a code is its reference documentation.
"""

from __future__ import annotations

from typing import Final

UNAVAILABLE: Final = -31001  # the server cannot be reached or started
DEADLINE: Final = -31002  # the deadline passed before the request was sent
OVERLOADED: Final = -31003  # too much is under way here
QUOTA: Final = -31004  # this principal has too many requests under way, or calls more often than its key allows
OUTCOME_UNKNOWN: Final = -31005  # the call may have been executed; answered with HTTP 200, so that nobody resends it
THROTTLED: Final = -31006  # the server itself asks to wait
CANCELLED: Final = -31007  # the client took the request back
KEY_MISMATCH: Final = -31008  # the idempotency key was used before with other arguments
STORE_UNAVAILABLE: Final = -31009  # the record of idempotency keys, or the audit log, cannot be written
DENIED: Final = -31010  # the call was refused before it was tried
UPSTREAM_PROTOCOL: Final = -31012  # the server sent something that is no answer
SHUTTING_DOWN: Final = -31013  # the gateway is about to end
UPSTREAM_AUTH: Final = -31015  # the server refuses the gateway's credentials
MOVED: Final = -31016  # between nodes of a cluster: another one owns the server

#: The key under which our own knowledge stands in the data of a server's error.
OURS: Final = "toolway"

#: In `_meta` of a request: how long the client is willing to wait.
TIMEOUT_KEY: Final = "toolway/timeoutMs"

#: In `_meta` of a request of another node of a cluster: whose call it is. Sealed, and taken once.
PASS_KEY: Final = "toolway/pass"
