"""One refresh of a stored token, as the separate process runs it: see `refresh_process.py`."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from toolway.auth import oauth_http  # noqa: F401 # import everything before a request is sent
from toolway.auth.encrypted_token_store import EncryptedTokenStore
from toolway.auth.shared_token_slot import refresh_stored_token
from toolway.auth.token_store import credential_from_dict
from toolway.network import NetworkPolicy
from toolway.types import AuthError


def run_order(order: dict[str, Any]) -> dict[str, Any]:
    """Refresh and store the token that `order` describes. Return `{}`, or the error as a dict."""
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
