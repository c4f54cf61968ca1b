"""What a gateway keeps on disk, for its owner alone: token, key, API keys, and where it can be found.

The command line looks here at every start whether a gateway runs; what seals and reads keys is loaded when it is used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from toolway.config.state import VARIABLE, gateway_folder
from toolway.errors import ConfigError

if TYPE_CHECKING:
    from toolway.gateway.principals import Keyring


class Running(msgspec.Struct, frozen=True):
    """A gateway that runs, or ran: for the command line, to find it."""

    url: str
    pid: int
    config: str


class State:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @staticmethod
    def default(environ: Mapping[str, str]) -> State:
        """`$TOOLWAY_STATE`, or the place that the system has for such things. Raises `ConfigError`."""
        folder = gateway_folder(environ)
        if folder is None:
            raise ConfigError(
                "there is no place to keep the gateway's token",
                evidence="neither HOME nor XDG_STATE_HOME is set",
                fix=f"name a folder: {VARIABLE}=/path",
                code="E-STATE",
            )
        return State(folder)

    def token(self) -> str:
        from toolway.gateway.principals import token_in

        return token_in(self.folder / "token")

    def key(self) -> bytes:
        from toolway.gateway.sealed import key_of

        return key_of(self.folder / "key")

    def keyring(self) -> Keyring:
        from toolway.gateway.principals import Keyring

        return Keyring(self.folder / "keys.json", self.token())

    def announce(self, running: Running) -> None:
        from toolway.gateway.sealed import write_private

        write_private(self.folder / "running.json", msgspec.json.encode(running))

    def withdraw(self) -> None:
        found = self.running()
        if found is not None and found.pid == os.getpid():
            (self.folder / "running.json").unlink(missing_ok=True)

    def running(self) -> Running | None:
        """The gateway that said it runs here, if its process is alive."""
        try:
            found = msgspec.json.decode((self.folder / "running.json").read_bytes(), type=Running)
            os.kill(found.pid, 0)
        except (OSError, ValueError):
            return None
        return found
