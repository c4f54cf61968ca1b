"""What a hub is made from: a file, a mapping or nothing → its servers; and the folders that it uses."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from toolway.addresses.policy import Addresses
from toolway.catalog.store import ListStore, Store
from toolway.config.addresses import allowing
from toolway.config.entries import entry, server_from_text
from toolway.config.formats import Loaded, read
from toolway.config.scopes import loaded
from toolway.config.spec import Retry, Server, ServerLike, Timeout, check_server_name, with_defaults

Source = str | os.PathLike[str] | Mapping[str, ServerLike] | Loaded | None
USUAL: Final = Path()  # stands for "the user's cache folder"


def servers_of(
    source: Source, timeout: Timeout | None, retry: Retry | None, addresses: Addresses
) -> tuple[dict[str, Server], tuple[Any, ...], Addresses]:
    """The servers, what is wrong with others, and the addresses that a further server may lead to."""
    problems: tuple[Any, ...] = ()
    allowed = addresses
    if source is None:
        source = loaded(os.environ, Path.cwd())
    if isinstance(source, str | os.PathLike):
        source = read(source)
    if isinstance(source, Loaded):
        servers, problems, allowed = source.servers, source.problems, addresses.joined(source.addresses)
    else:
        servers = {check_server_name(name): server_of(value) for name, value in source.items()}
    given = {name: with_defaults(server, timeout, retry) for name, server in servers.items()}
    return {name: allowing(server, addresses) for name, server in given.items()}, problems, allowed


def server_of(value: ServerLike) -> Server:
    if isinstance(value, Server):
        return value
    if isinstance(value, str):
        return server_from_text(value)
    if isinstance(value, Mapping):
        return entry(value)
    return Server(instance=value)


def identity(server: Server) -> str:
    """What makes a server the same server for its stored lists; never a secret."""
    words: list[Any] = [server.command, server.args, server.cwd, server.url]
    if server.openapi is not None:
        api = server.openapi
        inline = sha256(json.dumps(api.document, default=str).encode()).hexdigest() if api.document else ""
        words += [api.url, api.file, inline, repr((api.include, api.exclude, api.outputs))]
    return json.dumps(words)


def store_in(folder: str | os.PathLike[str] | ListStore | None, environ: Mapping[str, str]) -> ListStore | None:
    if folder is None or isinstance(folder, ListStore):
        return folder
    return Store(Path(folder)) if folder is not USUAL else usual_store(environ)


def usual_store(environ: Mapping[str, str]) -> Store | None:
    """Where this user's lists are kept."""
    cache = environ.get("XDG_CACHE_HOME") or (f"{environ['HOME']}/.cache" if "HOME" in environ else "")
    return Store(Path(cache) / "toolway" / "catalog") if cache else None


def runtime_dir(environ: Mapping[str, str]) -> Path | None:
    """Where the keeper records what it started: gone after a reboot, and ours alone."""
    runtime = environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "toolway"
    return Path(environ["HOME"]) / ".local" / "state" / "toolway" / "run" if "HOME" in environ else None
