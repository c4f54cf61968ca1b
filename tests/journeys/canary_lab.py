"""A home full of canaries: its own secret in every place where one can be, and servers that blurt out theirs.

Each canary names its place, so one that got out says where it came from. It is looked for by both of its ends, so
that a part of it that got out is found as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.journeys.canary_servers import RUN, SERVERS, SPEAKER
from tests.journeys.canary_watch import Canaries
from toolway.config.scopes import find_config_paths
from toolway.secrets import open_store


class Lab:
    """A home, a project in it and everything a user may have there."""

    def __init__(self, folder: Path, port: int, canary: Canaries) -> None:
        self.folder, self.canary = folder, canary
        self.home, self.project, self.tools = folder / "home", folder / "home" / "project", folder / "tools"
        self.tools.mkdir(parents=True)
        self.project.mkdir(parents=True)
        for name, text in SERVERS.items():
            source = textwrap.dedent(text).replace("RUN", RUN)
            (self.tools / name).write_text(SPEAKER + source)
        self.environ = self._environ()
        self.own = self._own(port)
        block = {"timeout": "5s", "audit": {"arguments": True}, "alerts": True}
        self._write(self.home / ".config/toolway/mcp.json", {"mcpServers": self.own, "toolway": block})
        self._clients(port)
        self._project_and_local()
        (self.home / "token").write_text(canary("file") + "\n")
        door = self.home / ".local/state/toolway/gateway/token"  # what opens the gateway of this machine
        door.parent.mkdir(parents=True)
        door.write_text(canary("gateway") + "\n")
        door.chmod(0o600)
        store = open_store(self.environ)
        for name in ("keyring", "http-keyring", "unused"):
            store.set(f"kept.{name}", canary(f"store-{name}"))
        self.placed = {path: path.read_bytes() for path in self.files()}

    def _environ(self) -> dict[str, str]:
        canary = self.canary
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        proxy = f"http://proxy:{canary('proxy')}@127.0.0.1:9"
        return kept | {
            "HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.folder / "run"),
            "TERM": "xterm",
            "EDITOR": "true",
            "TOOLWAY_SECRETS": "file",
            "TOOLWAY_SECRETS_PASSPHRASE": canary("passphrase"),
            "MY_TOKEN": canary("variable"),
            "UNRELATED_API_KEY": canary("unrelated"),
            "HTTPS_PROXY": proxy,
            "https_proxy": proxy,
        }

    def _script(self, name: str, *args: str, **env: str) -> dict[str, Any]:
        words = ["-S", str(self.tools / f"{name}.py"), *args]  # without site-packages: it starts in half the time
        return {"command": sys.executable, "args": words, "env": env, "maxRestarts": 0, "startTimeout": "15s"}

    def _own(self, port: int) -> dict[str, Any]:
        canary, script, echo = self.canary, self._script, f"http://127.0.0.1:{port}"
        maker = self.tools / "maker.sh"
        maker.write_text(f"#!/bin/sh\necho {canary('command')}\necho {canary('command-stderr')} >&2\n")
        failing = self.tools / "failing.sh"
        failing.write_text(f"#!/bin/sh\necho {canary('failing')}\necho {canary('failing')} >&2\nexit 7\n")
        key = "\n".join(("-----BEGIN PRIVATE KEY-----", canary("pem") * 2, "-----END PRIVATE KEY-----"))
        oauth = {"type": "oauth", "grant": "client_credentials", "issuer": f"{echo}/as", "clientId": "me"}
        return {
            "good": script("leaky", API_TOKEN=canary("env")),
            "variable": script("leaky", API_TOKEN="${MY_TOKEN}", OTHER="x ${env:MY_TOKEN}"),
            "keyring": script("leaky", API_TOKEN="${keyring:kept.keyring}"),
            "file": script("leaky", API_TOKEN="${file:~/token}"),
            "command": script("leaky", API_TOKEN=f"${{command:sh {maker}}}"),
            "failing": script("leaky", API_TOKEN=f"${{command:sh {failing}}}"),
            "shape": script("leaky", HARMLESS="ghp_" + canary("shape")),
            "address": script("leaky", DATABASE_URL=f"postgres://me:{canary('address')}@db.example/x"),
            "args": script("leaky", "--api-key", canary("args"), f"--token={canary('args-joined')}"),
            "inherit": {**script("leaky", API_TOKEN=canary("inherit")), "env_policy": "inherit"},
            "dead": script("dead", API_TOKEN=canary("dead")),
            "dead-keyring": script("dead", API_TOKEN="${keyring:kept.keyring}"),
            "banner": script("banner", API_TOKEN=canary("banner")),
            "refuses": script("refuses", API_TOKEN=canary("refuses")),
            "unknown-key": {**script("dead"), "apiKey": canary("unknown-key"), "envs": {"API_TOKEN": canary("envs")}},
            "bad-entry": {"command": 12, "env": {"API_TOKEN": canary("bad-entry")}},
            "bad-env": {"command": "x", "env": {"API_TOKEN": [canary("bad-env")]}},
            "bad-timeout": {"command": "x", "timeout": canary("bad-timeout"), "era": canary("bad-era")},
            "Bad Name!": {"url": f"ftp://me:{canary('bad-url')}@x", "headers": {"X-Key": canary("bad-header")}},
            "http-401": {"url": f"{echo}/401", "headers": {"Authorization": f"Bearer {canary('header')}"}},
            "http-403": {"url": f"{echo}/403", "headers": {"X-Api-Key": canary("header-key")}},
            "http-500": {"url": f"{echo}/500", "headers": {"Authorization": "Bearer ${keyring:kept.http-keyring}"}},
            "http-moved": {"url": f"{echo}/moved", "headers": {"Authorization": "Bearer ${MY_TOKEN}"}},
            "http-query": {"url": f"{echo}/401?api_key={canary('query')}"},
            "http-user": {"url": f"http://me:{canary('userinfo')}@127.0.0.1:{port}/500"},
            "http-line": {"url": f"{echo}/500", "headers": {"X-Key": canary("header-line") + "\n"}},
            "http-oauth": {"url": f"{echo}/401", "auth": {**oauth, "clientSecret": canary("oauth")}},
            "http-key": {"url": f"{echo}/401", "auth": {**oauth, "privateKey": key}},
            "http-proxy": {"url": "https://nowhere.invalid/mcp", "headers": {"X-Key": canary("through-proxy")}},
        }

    def _clients(self, port: int) -> None:
        """The files of other programs, with the tokens that users keep in them."""
        canary, script = self.canary, self._script
        echo = f"http://127.0.0.1:{port}"
        for name, path, root in (
            ("cursor", ".cursor/mcp.json", "mcpServers"),
            ("vscode", ".config/Code/User/mcp.json", "servers"),
            ("windsurf", ".codeium/windsurf/mcp_config.json", "mcpServers"),
            ("gemini", ".gemini/settings.json", "mcpServers"),
            ("zed", ".config/zed/settings.json", "context_servers"),
        ):
            entries = {
                f"{name}-env": {
                    **script("leaky", GITHUB_TOKEN=canary(f"{name}-env")),
                    "apiKey": canary(f"{name}-extra"),
                },
                f"{name}-args": script("leaky", "--api-key", canary(f"{name}-args")),
                f"{name}-http": {
                    "url": f"{echo}/401",
                    "headers": {"Authorization": f"Bearer {canary(f'{name}-http')}"},
                },
                f"{name}-query": {"url": f"{echo}/{name}?api_key={canary(f'{name}-query')}"},
            }
            self._write(self.home / path, {root: entries})
        oauth = {"enabled": True, "clientId": "me", "clientSecret": canary("gemini-oauth")}
        gemini = json.loads((self.home / ".gemini/settings.json").read_text())
        gemini["mcpServers"]["gemini-oauth"] = {"httpUrl": f"{echo}/oauth", "oauth": oauth}
        self._write(self.home / ".gemini/settings.json", gemini)
        local = {"mcpServers": {"claude-local": script("leaky", A_TOKEN=canary("claude-local"))}}
        user = {"claude-user": script("leaky", A_TOKEN=canary("claude-user"))}
        self._write(self.home / ".claude.json", {"mcpServers": user, "projects": {str(self.project): local}})
        codex = f"""
            [mcp_servers.codex-env]
            command = "{sys.executable}"
            args = ["{self.tools}/leaky.py"]
            env = {{ "A_TOKEN" = "{canary("codex-env")}" }}
            [mcp_servers.codex-http]
            url = "{echo}/codex"
            http_headers = {{ "Authorization" = "Bearer {canary("codex-http")}" }}
        """
        goose = f"""
            extensions:
              goose-env:
                type: stdio
                enabled: true
                cmd: {sys.executable}
                args: ["{self.tools}/leaky.py"]
                envs: {{A_TOKEN: {canary("goose-env")}}}
        """
        for path, text in ((".codex/config.toml", codex), (".config/goose/config.yaml", goose)):
            (self.home / path).parent.mkdir(parents=True, exist_ok=True)
            (self.home / path).write_text(textwrap.dedent(text))

    def _project_and_local(self) -> None:
        project = self._script("leaky", API_TOKEN=self.canary("project"))
        web = {"url": "https://nowhere.invalid/mcp", "headers": {"X-Key": self.canary("project-header")}}
        block = {"apiToken": self.canary("project-block")}
        self._write(self.project / ".mcp.json", {"mcpServers": {"project": project, "web": web}, "toolway": block})
        local = self._script("leaky", API_TOKEN=self.canary("local"))
        self._write(find_config_paths(self.environ, self.project).local, {"mcpServers": {"local": local}})
        self._write(
            self.project / ".vscode/mcp.json", {"servers": {"code": self._script("dead", A_KEY=self.canary("code"))}}
        )

    @staticmethod
    def _write(path: Path, value: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, indent=2))

    # -- what came of it ----------------------------------------------------------------------------------------------

    def files(self) -> list[Path]:
        return [path for path in self.folder.rglob("*") if path.is_file() and not path.is_symlink()]

    def leaks_on_disk(self) -> list[str]:
        """Canaries in files where they do not belong."""
        leaks = []
        for path in self.files():
            with contextlib.suppress(OSError):  # a file of a process that is just ending
                seen = self.canary.seen_in(path.read_bytes())
                if not any(seen <= may for may in self._allowed(path)):
                    leaks.append(f"{', '.join(sorted(seen))} in {path}")
        return leaks

    def _allowed(self, path: Path) -> Iterator[set[str]]:
        """What may be in a file: what was put there. Our own may get what stands in arguments as well, because nothing
        else can be done with it; and a copy of a file, for its owner alone, may have what the file may have."""
        if self.folder / "home/.local/state/toolway/backups" in path.parents:
            files = [each for each in self.placed if path.stat().st_mode & 0o077 == 0]
        else:
            files = [path]
        for file in files:
            own = file == self.home / ".config/toolway/mcp.json"
            arguments = {place for place in self.canary.all if place.endswith("-args")} if own else set()
            yield self.canary.seen_in(self.placed.get(file, b"")) | arguments
