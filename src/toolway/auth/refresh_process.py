"""Subprocess that refreshes a token, and finishes even if its parent is killed.

It reads one order from stdin: JSON with the credential, the token store's folder, and the store's key. It prints `{}`
or the error. It inherits an open file that holds the refresh lock, so the lock is released when the process ends, for
whatever reason. Its arguments and environment contain no secret.
"""

from __future__ import annotations

import json
import sys
from typing import Final

MAX_LIFETIME_S: Final = 30  # seconds until the process ends by itself


def main() -> None:
    """Read the refresh order (JSON) from stdin, refresh the token and print the result as JSON.

    Once it has the order, the process ignores signals that would end it. After `MAX_LIFETIME_S` seconds, it ends by
    itself.
    """
    order = json.load(sys.stdin)  # ends if the parent has ended: then nothing was sent, and nothing is lost
    sys.path[:] = order["path"]  # the parent process's, so the same code is imported
    try:
        from toolway._os import limit_lifetime, outlive_stop_signals  # found by the path of the parent

        outlive_stop_signals()  # a refresh takes ten seconds at most; to stop it could lose the login
        limit_lifetime(MAX_LIFETIME_S)
        from toolway.auth.refresh_order import run_order  # all that a request needs

        result = run_order(order)
    except ImportError:
        result = {"unable": True}  # the parent imports the code in another way; nothing was sent
    try:
        print(json.dumps(result), flush=True)
    except BrokenPipeError:
        pass  # the parent has ended; the new token is on disk


if __name__ == "__main__":
    main()
