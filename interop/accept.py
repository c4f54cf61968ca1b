"""Check that Claude Code, Codex and Gemini CLI read our exports, and that we read their config files.

    python interop/accept.py --installed DIR

Each client gets its own home folder with servers exported to every scope, and must list them. Then the client adds
servers with its own command, and we import its files. All servers are local fakes, so no traffic leaves the machine.
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

from toolway.config.clients import (
    ClientConfigFile,
    ExportPlan,
    find_client_files,
    plan_export,
    read_client_file,
    to_portable,
)
from toolway.config.editing.document import apply_edit

CLIENT_TIMEOUT_S = 120.0  # seconds per run of a client
FAKE = {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"]}
TOKEN = {"ACCEPT_TOKEN": "t-0123456789"}
Entries = dict[str, dict[str, Any]]


@dataclass
class Client:
    """One client in its own home folder."""

    name: str
    words: list[str]
    home: Path
    environ: dict[str, str]
    problems: list[str] = field(default_factory=list)
    exported: int = 0
    listed: int = 0
    connected: int = 0
    understood: int = 0

    @property
    def project(self) -> Path:
        return self.home / "project"

    def run(self, *words: str) -> str:
        """Run the client and return its output from stdout and stderr."""
        done = subprocess.run(
            [*self.words, *words],
            env={**self.environ, "HOME": str(self.home), **TOKEN},
            cwd=self.project,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=CLIENT_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            self.problems.append(f"{' '.join(words[:2])}: exit code {done.returncode}: {done.stdout.strip()[-300:]}")
        return done.stdout

    def config_files(self) -> list[ClientConfigFile]:
        found = find_client_files({"HOME": str(self.home)}, self.project)
        return [
            config_file for config_file in found if config_file.client == self.name and config_file.scope != "managed"
        ]

    def expect(self, subject: str, wanted: Any, found: Any) -> bool:
        if wanted != found:
            self.problems.append(f"{subject}: expected {wanted!r}, found {found!r}")
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
            started = time.monotonic()
            version = (re.findall(r"\d+\.\d+\.\d+", client.run("--version")) or ["-"])[0]
            check(client, url)
            row = f"{client.exported:8} {client.listed:6} {client.connected:9} {client.understood:10}"
            print(f"{name:12} {version:10} {row} {time.monotonic() - started:5.1f}s")
            for problem in client.problems:
                print(f"  {problem}")
            good = good and not client.problems
    print("accepted" if good else "NOT accepted")
    return 0 if good else 1


# -- exported servers -------------------------------------------------------------------------------------------------


def _entries(url: str, project: Path) -> Entries:
    """Return entries with every setting of these clients, and some that not all of them support."""
    return {
        "plain": {**FAKE, "env": {"LEVEL": "debug", "SPACE": 'a "b" c'}},
        "token": {**FAKE, "env": {"ACCEPT_TOKEN": "${ACCEPT_TOKEN}"}, "timeout": "45s", "startTimeout": 20000},
        "there": {**FAKE, "cwd": str(project)},
        "off": {**FAKE, "enabled": False},
        "picky": {**FAKE, "tools": {"allow": ["add"], "deny": ["slow"]}},
        "web": {"url": url, "headers": {"Authorization": "Bearer ${ACCEPT_TOKEN}", "X-Team": "a"}},
        "events": {"url": "http://127.0.0.1:9/sse", "type": "sse"},
    }


def _export(client: Client, url: str) -> dict[str, tuple[ClientConfigFile, ExportPlan, Entries]]:
    """Export to every scope, with the scope in the server names. Unsupported settings must be reported."""
    done: dict[str, tuple[ClientConfigFile, ExportPlan, Entries]] = {}
    for config_file in client.config_files():
        entries = {f"{config_file.scope}-{name}": value for name, value in _entries(url, client.project).items()}
        export = plan_export(config_file, entries)
        missing = entries.keys() - set(export.changed) - {loss.server for loss in export.unsupported}
        client.expect(f"left out of {config_file.scope} without a report", set(), missing)
        apply_edit(export.edit, client.home / "backups")
        client.exported += len(export.changed)
        done[config_file.scope] = (config_file, export, entries)
    return done


def _check_reading(client: Client, scope: str, wanted: Mapping[str, Mapping[str, Any]]) -> None:
    """Check our reading of entries that the client wrote, and that exporting them again changes nothing."""
    config_file = next(config_file for config_file in client.config_files() if config_file.scope == scope)
    imported = read_client_file(config_file)
    found = {entry.name: entry.value for entry in imported.entries}
    for name, value in wanted.items():
        client.understood += client.expect(f"{scope} entry {name} as we read it", value, found.get(name))
    again = plan_export(config_file, {entry.name: to_portable(entry) for entry in imported.entries})
    client.expect(f"{config_file.path.name} after its imported entries were exported again", "", again.edit.diff())


# -- the clients -------------------------------------------------------------------------------------------------------


def _claude(client: Client, url: str) -> None:
    scopes = _export(client, url)
    listed = client.run("mcp", "list")
    for scope, (_, export, entries) in scopes.items():
        for name in export.changed:
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
        _check_reading(client, scope, {"own": own, "own-web": web})


def _codex(client: Client, url: str) -> None:
    user = next(config_file for config_file in client.config_files() if config_file.scope == "user")
    user.path.parent.mkdir(parents=True)
    user.path.write_text(f'# mine\n[projects."{client.project}"]\ntrust_level = "trusted"\n', encoding="utf-8")
    scopes = _export(client, url)
    listed = {each["name"]: each for each in _json(client.run("mcp", "list", "--json"))}
    for scope, (_, export, entries) in scopes.items():
        for name in export.changed:
            # In a project's own file its directory is implied.
            entry = {key: value for key, value in entries[name].items() if (scope, key) != ("project", "cwd")}
            described = _codex_listed(listed.get(name, {}))
            client.listed += client.expect(f"{name} in the list", _codex_expected(entry), described)
    client.run("mcp", "add", "own", "--env", "A=b c", "--", "server", "--flag")
    client.run("mcp", "add", "own-web", "--url", url, "--bearer-token-env-var", "ACCEPT_TOKEN")
    own = {"command": "server", "args": ["--flag"], "env": {"A": "b c"}}
    web = {"url": url, "headers": {"Authorization": "Bearer ${ACCEPT_TOKEN}"}}
    _check_reading(client, "user", {"own": own, "own-web": web})


def _codex_expected(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the expected description of an entry in the format of Codex."""
    env = entry.get("env", {})
    plain = {key: value for key, value in env.items() if not value.startswith("$")}
    timeouts = (45.0, 20.0) if "timeout" in entry else (None, None)
    expected = {"enabled": entry.get("enabled", True), "timeouts": timeouts}
    if "url" in entry:
        headers = {"X-Team": "a"}
        return {**expected, "url": entry["url"], "token": "ACCEPT_TOKEN", "headers": headers}
    names = [key for key in env if key not in plain]
    return {
        **expected,
        "command": [entry["command"], *entry["args"]],
        "env": plain,
        "names": names,
        "cwd": entry.get("cwd"),
    }


def _codex_listed(shown: Mapping[str, Any]) -> dict[str, Any]:
    transport = shown.get("transport", {})
    described = {
        "enabled": shown.get("enabled"),
        "timeouts": (shown.get("tool_timeout_sec"), shown.get("startup_timeout_sec")),
    }
    if transport.get("type") == "streamable_http":
        return {
            **described,
            "url": transport["url"],
            "token": transport["bearer_token_env_var"],
            "headers": transport["http_headers"],
        }
    command = [transport.get("command"), *transport.get("args", [])]
    return {
        **described,
        "command": command,
        "env": transport.get("env") or {},
        "names": transport.get("env_vars"),
        "cwd": transport.get("cwd"),
    }


def _gemini(client: Client, url: str) -> None:
    scopes = _export(client, url)
    listed = client.run("mcp", "list")
    for _, export, entries in scopes.values():
        for name in export.changed:
            line = next((line for line in listed.splitlines() if f" {name}: " in line), "")
            kind = "sse" if name.endswith("events") else "http" if "url" in entries[name] else "stdio"
            client.listed += client.expect(f"{name} in the list", True, f"{_shown(entries[name])} ({kind})" in line)
            if kind != "sse":
                client.connected += client.expect(f"{name}: {line}", True, line.endswith("Connected"))
    for scope in ("user", "project"):
        client.run("mcp", "add", "-s", scope, "-e", "A=b c", "--timeout", "9000", "own", "server", "x")
        client.run("mcp", "add", "-s", scope, "-t", "http", "-H", "X-Team: a", "own-web", url)
        own = {"command": "server", "args": ["x"], "env": {"A": "b c"}, "timeout": 9000}
        _check_reading(client, scope, {"own": own, "own-web": {"url": url, "headers": {"X-Team": "a"}}})


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
    """Return an entry as the clients' server lists print it."""
    return str(entry["url"]) if "url" in entry else " ".join([entry["command"], *entry["args"]])


def _json(text: str) -> list[dict[str, Any]]:
    """Return the JSON part of an output, which may start with a warning."""
    found: list[dict[str, Any]] = json.loads(text[text.index("[\n") :]) if "[\n" in text else []
    return found


@contextmanager
def _http() -> Iterator[str]:
    words = [sys.executable, "-m", "toolway.testing.http_server", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().split()[1]}/mcp"
        finally:
            process.terminate()


if __name__ == "__main__":
    sys.exit(main())
