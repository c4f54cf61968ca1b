"""Do Claude Code, Codex and Gemini CLI accept what we export, and do we understand what they write themselves?

    python interop/accept.py --installed DIR

Each client gets a home of its own with servers exported to every scope, and is asked to list them; then it adds servers
by its own command, and we import its files. All servers are fakes on this machine: nothing leaves it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolway.config.clients import Export, Place, find, plan_export, portable, read
from toolway.config.editing.write import apply

LIMIT = 120.0  # seconds for one run of a client
FAKE = {"command": sys.executable, "args": ["-m", "toolway.testing.fake"]}
TOKEN = {"ACCEPT_TOKEN": "t-0123456789"}
Entries = dict[str, dict[str, Any]]


@dataclass
class Client:
    """One client in a home of its own."""

    name: str
    words: list[str]
    home: Path
    environ: dict[str, str]
    troubles: list[str] = field(default_factory=list)
    exported: int = 0
    listed: int = 0
    connected: int = 0
    understood: int = 0

    @property
    def project(self) -> Path:
        return self.home / "project"

    def run(self, *words: str) -> str:
        """What it prints, on either stream."""
        done = subprocess.run(
            [*self.words, *words],
            env={**self.environ, "HOME": str(self.home), **TOKEN},
            cwd=self.project,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        if done.returncode:
            self.troubles.append(f"{' '.join(words[:2])}: exit code {done.returncode}: {done.stdout.strip()[-300:]}")
        return done.stdout

    def places(self) -> list[Place]:
        found = find({"HOME": str(self.home)}, self.project)
        return [place for place in found if place.client == self.name and place.scope != "managed"]

    def expect(self, what: str, wanted: Any, found: Any) -> bool:
        if wanted != found:
            self.troubles.append(f"{what}: wanted {wanted!r}, found {found!r}")
        return bool(wanted == found)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--installed", type=Path, required=True, metavar="DIR")
    installed: Path = parser.parse_args().installed.resolve()
    good = True
    print(f"{'client':12} {'version':10} {'exported':>8} {'listed':>6} {'connected':>9} {'understood':>10} {'time':>6}")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work, _http() as url:
        for name, check in CHECKS.items():
            client = _client(name, installed, Path(work))
            begun = time.monotonic()
            version = (re.findall(r"\d+\.\d+\.\d+", client.run("--version")) or ["-"])[0]
            check(client, url)
            row = f"{client.exported:8} {client.listed:6} {client.connected:9} {client.understood:10}"
            print(f"{name:12} {version:10} {row} {time.monotonic() - begun:5.1f}s")
            for trouble in client.troubles:
                print(f"  {trouble}")
            good = good and not client.troubles
    print("accepted" if good else "NOT accepted")
    return 0 if good else 1


# -- what is exported --------------------------------------------------------------------------------------------------


def _entries(url: str, project: Path) -> Entries:
    """Everything that these clients can be told, and some things that not all of them can."""
    return {
        "plain": {**FAKE, "env": {"LEVEL": "debug", "SPACE": 'a "b" c'}},
        "token": {**FAKE, "env": {"ACCEPT_TOKEN": "${ACCEPT_TOKEN}"}, "timeout": "45s", "startTimeout": 20000},
        "there": {**FAKE, "cwd": str(project)},
        "off": {**FAKE, "enabled": False},
        "picky": {**FAKE, "tools": {"allow": ["add"], "deny": ["slow"]}},
        "web": {"url": url, "headers": {"Authorization": "Bearer ${ACCEPT_TOKEN}", "X-Team": "a"}},
        "events": {"url": "http://127.0.0.1:9/sse", "type": "sse"},
    }


def _export(client: Client, url: str) -> dict[str, tuple[Place, Export, Entries]]:
    """To every scope, under names that tell the scope. What cannot be told must have been named."""
    done: dict[str, tuple[Place, Export, Entries]] = {}
    for place in client.places():
        entries = {f"{place.scope}-{name}": value for name, value in _entries(url, client.project).items()}
        export = plan_export(place, entries)
        missing = entries.keys() - set(export.written) - {loss.server for loss in export.losses}
        client.expect(f"left out of {place.scope} without a word", set(), missing)
        apply(export.edit, client.home / "backups")
        client.exported += len(export.written)
        done[place.scope] = (place, export, entries)
    return done


def _understood(client: Client, scope: str, wanted: Mapping[str, Mapping[str, Any]]) -> None:
    """Our reading of entries that the client wrote itself; exported again they change nothing."""
    place = next(place for place in client.places() if place.scope == scope)
    imported = read(place)
    found = {entry.name: entry.value for entry in imported.entries}
    for name, value in wanted.items():
        client.understood += client.expect(f"{scope} entry {name} as we read it", value, found.get(name))
    again = plan_export(place, {entry.name: portable(entry) for entry in imported.entries})
    client.expect(f"{place.path.name} after an export of what was imported", "", again.edit.diff())


# -- the clients -------------------------------------------------------------------------------------------------------


def _claude(client: Client, url: str) -> None:
    scopes = _export(client, url)
    listed = client.run("mcp", "list")
    for scope, (_, export, entries) in scopes.items():
        for name in export.written:
            line = next((line for line in listed.splitlines() if line.startswith(f"{name}: ")), "")
            client.listed += client.expect(f"{name} in the list", True, _shown(entries[name]) in line)
            status = "Pending approval" if scope == "project" else "Connected"
            if not name.endswith("events"):
                client.connected += client.expect(f"{name}: {line}", True, status in line) and scope != "project"
    for scope in ("user", "local", "project"):
        client.run("mcp", "add", "-s", scope, "own", "-e", "A=b c", "--", "server", "--flag")
        header = "Authorization: Bearer ${ACCEPT_TOKEN}"
        client.run("mcp", "add", "-s", scope, "-t", "http", "own-web", url, "-H", header)
        own = {"command": "server", "args": ["--flag"], "env": {"A": "b c"}}
        web = {"url": url, "headers": {"Authorization": "Bearer ${ACCEPT_TOKEN}"}}
        _understood(client, scope, {"own": own, "own-web": web})


def _codex(client: Client, url: str) -> None:
    user = next(place for place in client.places() if place.scope == "user")
    user.path.parent.mkdir(parents=True)
    user.path.write_text(f'# mine\n[projects."{client.project}"]\ntrust_level = "trusted"\n', encoding="utf-8")
    scopes = _export(client, url)
    listed = {each["name"]: each for each in _json(client.run("mcp", "list", "--json"))}
    for scope, (_, export, entries) in scopes.items():
        for name in export.written:
            # In a project's own file its directory goes without saying.
            entry = {key: value for key, value in entries[name].items() if (scope, key) != ("project", "cwd")}
            said = _codex_said(listed.get(name, {}))
            client.listed += client.expect(f"{name} in the list", _codex_sees(entry), said)
    client.run("mcp", "add", "own", "--env", "A=b c", "--", "server", "--flag")
    client.run("mcp", "add", "own-web", "--url", url, "--bearer-token-env-var", "ACCEPT_TOKEN")
    own = {"command": "server", "args": ["--flag"], "env": {"A": "b c"}}
    web = {"url": url, "headers": {"Authorization": "Bearer ${ACCEPT_TOKEN}"}}
    _understood(client, "user", {"own": own, "own-web": web})


def _codex_sees(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What Codex should say of an entry, in its own words."""
    env = entry.get("env", {})
    plain = {key: value for key, value in env.items() if not value.startswith("$")}
    timeouts = (45.0, 20.0) if "timeout" in entry else (None, None)
    seen = {"enabled": entry.get("enabled", True), "timeouts": timeouts}
    if "url" in entry:
        headers = {"X-Team": "a"}
        return {**seen, "url": entry["url"], "token": "ACCEPT_TOKEN", "headers": headers}
    names = [key for key in env if key not in plain]
    return {
        **seen,
        "command": [entry["command"], *entry["args"]],
        "env": plain,
        "names": names,
        "cwd": entry.get("cwd"),
    }


def _codex_said(shown: Mapping[str, Any]) -> dict[str, Any]:
    way = shown.get("transport", {})
    said = {
        "enabled": shown.get("enabled"),
        "timeouts": (shown.get("tool_timeout_sec"), shown.get("startup_timeout_sec")),
    }
    if way.get("type") == "streamable_http":
        return {**said, "url": way["url"], "token": way["bearer_token_env_var"], "headers": way["http_headers"]}
    command = [way.get("command"), *way.get("args", [])]
    return {
        **said,
        "command": command,
        "env": way.get("env") or {},
        "names": way.get("env_vars"),
        "cwd": way.get("cwd"),
    }


def _gemini(client: Client, url: str) -> None:
    scopes = _export(client, url)
    listed = client.run("mcp", "list")
    for _, export, entries in scopes.values():
        for name in export.written:
            line = next((line for line in listed.splitlines() if f" {name}: " in line), "")
            kind = "sse" if name.endswith("events") else "http" if "url" in entries[name] else "stdio"
            client.listed += client.expect(f"{name} in the list", True, f"{_shown(entries[name])} ({kind})" in line)
            if kind != "sse":
                client.connected += client.expect(f"{name}: {line}", True, line.endswith("Connected"))
    for scope in ("user", "project"):
        client.run("mcp", "add", "-s", scope, "-e", "A=b c", "--timeout", "9000", "own", "server", "x")
        client.run("mcp", "add", "-s", scope, "-t", "http", "-H", "X-Team: a", "own-web", url)
        own = {"command": "server", "args": ["x"], "env": {"A": "b c"}, "timeout": 9000}
        _understood(client, scope, {"own": own, "own-web": {"url": url, "headers": {"X-Team": "a"}}})


CHECKS: dict[str, Callable[[Client, str], None]] = {"claude-code": _claude, "codex": _codex, "gemini-cli": _gemini}
_PROGRAMS = {
    "claude-code": "@anthropic-ai/claude-code/cli-wrapper.cjs",
    "codex": "@openai/codex/bin/codex.js",
    "gemini-cli": "@google/gemini-cli/bundle/gemini.js",
}
_QUIET = {
    "DISABLE_AUTOUPDATER": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "GEMINI_CLI_TRUST_WORKSPACE": "true",
    "NO_COLOR": "1",
}


def _client(name: str, installed: Path, work: Path) -> Client:
    program = installed / "clients" / name / "node_modules" / _PROGRAMS[name]
    home = work / name
    (home / "project" / ".git").mkdir(parents=True)
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "CLAUDE_", "CODEX_"))}
    return Client(name, [str(installed / "bin" / "node-new"), str(program)], home, environ | _QUIET)


def _shown(entry: Mapping[str, Any]) -> str:
    """An entry as a list of servers shows it."""
    return str(entry["url"]) if "url" in entry else " ".join([entry["command"], *entry["args"]])


def _json(text: str) -> list[dict[str, Any]]:
    """The JSON in what was printed: a warning may stand before it."""
    found: list[dict[str, Any]] = json.loads(text[text.index("[\n") :]) if "[\n" in text else []
    return found


@contextmanager
def _http() -> Iterator[str]:
    words = [sys.executable, "-m", "toolway.testing.fake_http", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().split()[1]}/mcp"
        finally:
            process.terminate()


if __name__ == "__main__":
    sys.exit(main())
