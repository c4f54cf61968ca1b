"""Subprocess that refreshes a token, and finishes even if its parent is killed.

It reads one order from stdin: JSON with the credential, the folder of the token store and its key. It prints `{}` or
the error. It inherits an open file that holds the refresh lock. So the lock is released when the process ends, in any
way. Its arguments and environment contain no secret.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

MAX_LIFETIME_S: Final = 30  # seconds until the process ends by itself


def main() -> None:
    """Read the refresh order (JSON) from stdin, refresh the token and print the result as JSON.

    Signals that would end the process are ignored from the order on; after `MAX_LIFETIME_S` seconds it ends by itself.
    """
    order = json.load(sys.stdin)  # ends if the parent has ended: then nothing was sent, and nothing is lost
    sys.path[:] = order["path"]  # the parent process's, so the same code is imported
    try:
        from toolway._os import limit_lifetime, outlive_stop_signals

        outlive_stop_signals()  # a refresh takes ten seconds at most; to stop it could lose the login
        limit_lifetime(MAX_LIFETIME_S)
        result = run_order(order)
    except ImportError:
        result = {"unable": True}  # the parent imports the code in another way; nothing was sent
    try:
        print(json.dumps(result), flush=True)
    except BrokenPipeError:
        pass  # the parent has ended; the new token is on disk


def run_order(order: dict[str, Any]) -> dict[str, Any]:
    """Refresh and store the token that `order` describes. Return `{}`, or the error as a dict."""
    import asyncio
    import time
    from pathlib import Path

    from toolway.auth import oauth_http  # noqa: F401 # import everything before a request is sent
    from toolway.auth.encrypted_token_store import EncryptedTokenStore
    from toolway.auth.shared_token_slot import refresh_stored_token
    from toolway.auth.token_store import credential_from_dict
    from toolway.network import NetworkPolicy
    from toolway.types import AuthError

    key = bytes.fromhex(order["key"])
    store = EncryptedTokenStore(Path(order["folder"]), lambda: key)
    current = credential_from_dict(order["held"])
    network_policy = NetworkPolicy(tuple(order["allow"]), tuple(order["written"]))
    try:
        asyncio.run(
            refresh_stored_token(store, order["upstream"], order["principal"], current, network_policy, time.time)
        )
    except AuthError as error:
        return {"reason": error.reason, "code": error.code, "fix": error.hint}
    except Exception as exc:
        return {"reason": f"the token refresh failed: {type(exc).__name__}", "code": "E-AUTH-STORE"}
    return {}


if __name__ == "__main__":
    main()
