"""A gateway's state directory, private to its user.

It contains the local token, the sealing key, the API keys, and the running gateway's address.

The command line checks on every start whether a gateway runs, so this module only loads cryptography when needed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from toolway._os import process_exists, process_start
from toolway.config.locations import STATE_FOLDER_VARIABLE, find_config_paths, gateway_state_folder
from toolway.errors import ConfigError

if TYPE_CHECKING:
    from toolway.gateway.principals import FileApiKeyStore


class RunningGateway(msgspec.Struct, frozen=True):
    """Address and process id of a running gateway, as stored in `running.json`.

    The command line reads that file to find the gateway.
    """

    url: str
    pid: int
    config: str
    started: str = ""  # when the process was started; "" if unknown. Another program may have its pid later

    def named_file(self, environ: Mapping[str, str], directory: Path) -> Path | None:
        """Return the config file with which the gateway was started.

        Return None if it serves the default files, or a cluster's configuration.
        """
        found = [os.path.realpath(path) for _, path in find_config_paths(environ, directory).iter_by_scope()]
        is_named = os.path.isfile(self.config) and os.path.realpath(self.config) not in found
        return Path(self.config) if is_named else None


class StateDir:
    """A gateway's state directory: paths and contents of its files.

    These are the local token, the sealing key, the API keys, and `running.json`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @staticmethod
    def default(environ: Mapping[str, str]) -> StateDir:
        """Return the state directory: `$TOOLWAY_STATE`, or the system's usual place for state.

        Raises `ConfigError` if the environment names no directory.
        """
        folder = gateway_state_folder(environ)
        if folder is None:
            raise ConfigError(
                "no directory for the gateway's state",
                detail="neither HOME nor XDG_STATE_HOME is set",
                hint=f"set a directory: {STATE_FOLDER_VARIABLE}=/path",
                code="E-STATE",
            )
        return StateDir(folder)

    def read_token(self) -> str:
        from toolway.gateway.principals import read_local_token

        return read_local_token(self.folder / "token")

    def read_sealing_key(self) -> bytes:
        from toolway.gateway.sealing import read_sealing_key

        return read_sealing_key(self.folder / "key")

    def open_key_store(self) -> FileApiKeyStore:
        from toolway.gateway.principals import FileApiKeyStore

        return FileApiKeyStore(self.keys_file, self.read_token())

    @property
    def keys_file(self) -> Path:
        """File with the hashes of the API keys."""
        return self.folder / "keys.json"

    def write_running(self, running: RunningGateway) -> None:
        """Write `running.json`, by which the command line finds this gateway, with its process's start time."""
        from toolway.secrets.encrypted_file import write_private

        write_private(
            self.folder / "running.json", msgspec.json.encode(replace(running, started=process_start(running.pid)))
        )

    def remove_running(self) -> None:
        found = self.read_running()
        if found is not None and found.pid == os.getpid():
            (self.folder / "running.json").unlink(missing_ok=True)

    def read_running(self) -> RunningGateway | None:
        """Return the content of `running.json`, or None if it is missing or its process is not alive."""
        try:
            found = msgspec.json.decode((self.folder / "running.json").read_bytes(), type=RunningGateway)
        except (OSError, ValueError):
            return None
        if not process_exists(found.pid):
            return None
        return found if process_start(found.pid) in ("", found.started) or not found.started else None
