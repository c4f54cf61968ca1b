"""Where a hub's config comes from (file, mapping or default files), and its default folders."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from toolway._os import cache_folder, state_folder
from toolway.catalog.storage import CatalogStorage, FileCatalogStorage
from toolway.config.locations import gateway_state_folder
from toolway.config.schema import (
    Server,
    ServerLike,
)

if TYPE_CHECKING:
    from toolway.config.loader import LoadedConfig

ConfigSource: TypeAlias = (
    "str | os.PathLike[str] | Mapping[str, ServerLike] | Sequence[Mapping[str, Any]] | LoadedConfig | None"
)
_log = logging.getLogger("toolway.config")
DEFAULT_CATALOG: Final = Path()  # sentinel for the user's cache folder


def server_fingerprint(server: Server) -> str:
    """Return the fingerprint of a server's definition, under which its lists are stored.

    The fingerprint leaves out environment variables and headers, because they may contain secrets.
    """
    parts: list[Any] = [server.command, server.args, server.cwd, server.url]
    if server.message_url is not None:
        parts.append(server.message_url)
    if server.transport_settings is not None:
        parts += server.transport_settings.fingerprint()
    return json.dumps(parts)


def open_catalog_storage(
    folder: str | os.PathLike[str] | CatalogStorage | None, environ: Mapping[str, str]
) -> CatalogStorage | None:
    if folder is None or isinstance(folder, CatalogStorage):
        return folder
    return default_catalog_storage(environ) if folder is DEFAULT_CATALOG else _catalog_storage(Path(folder), environ)


def default_catalog_storage(environ: Mapping[str, str]) -> FileCatalogStorage | None:
    """Open the catalog storage in this user's cache folder. Return None without a home directory."""
    cache = default_cache_folder(environ)
    return _catalog_storage(cache / "catalog", environ) if cache is not None else None


def default_cache_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder `toolway` in this user's cache folder, or None without a home directory."""
    return cache_folder(environ)


def _catalog_storage(folder: Path, environ: Mapping[str, str]) -> FileCatalogStorage | None:
    """Open the store for tool lists in `folder`. Return None without a state folder.

    The key that authenticates the stored lists is in the state folder.
    """
    state = gateway_state_folder(environ)
    return FileCatalogStorage(folder, state / "lists.key") if state is not None else None


def default_runtime_dir(environ: Mapping[str, str]) -> Path | None:
    """Return the private folder for the pid files of the reaper (the servers' parent process).

    Return None if there is neither a runtime directory nor a home directory.
    """
    runtime = environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "toolway"
    state = state_folder({"HOME": environ["HOME"]} if "HOME" in environ else environ)
    return state / "run" if state else None
