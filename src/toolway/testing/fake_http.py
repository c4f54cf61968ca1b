"""An HTTP MCP server of both eras that misbehaves on purpose.

    python -m toolway.testing.fake_http --list-modes
    python -m toolway.testing.fake_http --port 0 --era handshake --answer sse

Its first line on stdout is `listening PORT`. Inside a test, use `toolway.testing.FakeHttp`.
"""

from __future__ import annotations

from toolway.testing.fakes.http_server import main

if __name__ == "__main__":
    main()
