"""Server over stdio whose tools write their effects to a file, with fsync, before they answer.

    python effect_server.py EFFECTS

Tools: `read` (read-only), `put` (idempotent), `pay` (unsafe), `pay_once` (unsafe, one effect per idempotency key),
`list` (read-only: the effects with an `id`), `fail` (reports a failure), `slow` (unsafe, waits after its effect).
An argument `delay` is slept before the effect, `delay_after` after it, `first_delay_after` after the first of a key.
`kill_before` and `kill_after` name a file with the id of a process that is killed before or after the effect, once.
The file EFFECTS.schema, if it exists, is the input schema of all tools.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

TOOLS = {
    "read": {"readOnlyHint": True},
    "put": {"idempotentHint": True},
    "pay": {},
    "pay_once": {},
    "list": {"readOnlyHint": True},
    "fail": {},
}
_lock = threading.Lock()
_write_lock = threading.Lock()
_keys: set[str] = set()  # of the effects in the file up to `_position`
_position = 0
_STRONGEST = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows ends the process at once for SIGTERM


def main() -> None:
    effects = Path(sys.argv[1])
    if sys.platform == "win32":  # whose pipes have the code page of the system
        sys.stdin.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            threading.Thread(target=_answer, args=(effects, message), daemon=True).start()


def _answer(effects: Path, message: dict[str, Any]) -> None:
    reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    try:
        reply["result"] = _result(effects, message["method"], message.get("params") or {})
    except LookupError:
        reply["error"] = {"code": -32601, "message": "unknown method"}
    with _write_lock:
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


def _result(effects: Path, method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        info = {"name": "effects", "version": "1"}
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        changed = Path(f"{effects}.schema")
        schema = json.loads(changed.read_text()) if changed.exists() else {"type": "object"}
        return {"tools": [{"name": name, "inputSchema": schema, "annotations": a} for name, a in TOOLS.items()]}
    if method == "ping":
        return {}
    if method != "tools/call":
        raise LookupError(method)
    return _call(effects, params["name"], params.get("arguments") or {}, params.get("_meta") or {})


def _call(effects: Path, name: str, arguments: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
    time.sleep(arguments.get("delay", 0))
    _kill(arguments, "kill_before")
    id_ = arguments.get("id", "")
    is_first = True
    if name == "fail":
        return {"content": [{"type": "text", "text": "no"}], "isError": True}
    if name in ("read", "list"):
        found = [each for each in read_effects(effects) if not id_ or each["id"] == id_]
        data: dict[str, Any] = {"items": found, "echo": arguments}
    else:
        key = meta.get("key") if name == "pay_once" else None
        with _lock, effects.open("a+", newline="\n") as file:
            if key is not None:
                _lock_file(file)  # several servers may share the file
                _read_keys(file)
            is_first = key not in _keys
            if is_first:
                file.write(json.dumps({"tool": name, "id": id_, "key": key}) + "\n")
                file.flush()
                os.fsync(file.fileno())
        data = {"id": id_, "ok": True}
    _kill(arguments, "kill_after")
    time.sleep(arguments.get("delay_after", 0) + (arguments.get("first_delay_after", 0) if is_first else 0))
    return {"content": [{"type": "text", "text": json.dumps(data)}], "structuredContent": data}


def _lock_file(file: IO[str]) -> None:
    """Lock a file until it is closed."""
    if sys.platform == "win32":
        from toolway._os import lock_handle

        lock_handle(file.fileno())
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)


def _kill(arguments: dict[str, Any], when: str) -> None:
    """Kill the process whose id is in the file that an argument names, unless this call has done it before."""
    pid_file = arguments.get(when)
    done = Path(f"{pid_file}.{when}.{arguments.get('id')}")
    if pid_file is None or done.exists():
        return
    done.touch()
    os.kill(int(Path(pid_file).read_text()), _STRONGEST)
    time.sleep(60)  # its servers are ended with it


def _read_keys(file: IO[str]) -> None:
    """Read the keys of the effects that were added to the file since the last time."""
    global _position
    file.seek(_position)
    while (line := file.readline()).endswith("\n"):
        _position += len(line.encode())
        if (key := json.loads(line)["key"]) is not None:
            _keys.add(key)


def read_effects(path: Path) -> list[dict[str, Any]]:
    """Return the effects in the file; a line that is not complete does not count."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


if __name__ == "__main__":
    main()
