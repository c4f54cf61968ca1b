"""The program that renews a token: a process of its own, because a renewal must come to its end once it has begun.

It reads one order from its input, and says at the end `{}` or why not. It holds the lock by an open file that it was
given, so the lock ends with it, however it ends. Nothing secret is among its arguments or in its environment.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any, Final

LIFE: Final = 30  # seconds after which it ends, whatever hangs
UNABLE: Final = {"unable": True}


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # ten seconds at most, and then a login is not lost
    signal.alarm(LIFE)
    order = json.load(sys.stdin)
    sys.path[:] = order["path"]  # of whoever sent us: the same code, wherever it lies
    try:
        answer = carry_out(order)
    except ImportError:
        answer = UNABLE  # it is found by other means there; nothing was sent
    try:
        print(json.dumps(answer), flush=True)
    except BrokenPipeError:
        pass  # whoever sent us is gone; what matters is on disk


def carry_out(order: dict[str, Any]) -> dict[str, Any]:
    import asyncio
    import time
    from pathlib import Path

    from toolway.addresses import Addresses
    from toolway.model import NotAuthorized
    from toolway.security import fetching  # noqa: F401 # all that is needed, before anything is sent
    from toolway.security.on_disk import renew_on_disk
    from toolway.security.sealed_tokens import SealedTokens
    from toolway.security.tokens import unpacked

    key = bytes.fromhex(order["key"])
    store = SealedTokens(Path(order["folder"]), lambda: key)
    held = unpacked(order["held"])
    reach = Addresses(tuple(order["allow"]), tuple(order["written"]))
    try:
        asyncio.run(renew_on_disk(store, order["upstream"], order["principal"], held, reach, time.time))
    except NotAuthorized as trouble:
        return {"reason": trouble.reason, "code": trouble.code, "fix": trouble.fix}
    except Exception as exc:
        return {"reason": f"the renewal failed: {type(exc).__name__}", "code": "E-AUTH-STORE"}
    return {}


if __name__ == "__main__":
    main()
