"""Storage of pins in a file of the state folder, and the review of lists with it.

The file holds the pins and what deviates from them, so that `toolway pins` shows and approves without a running hub. A
hub that holds something reads the file again once a second if it changed. Several processes use one file: each writes
only the servers whose pins it changed, and no approval in the file is lost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec

from toolway.catalog.pins import Deviation, PinMode, PinReview, ServerPins, approve, server_key
from toolway.errors import ConfigError
from toolway.secrets.encrypted_file import locked, read_private, write_private
from toolway.types import Json

PIN_FILE_NAME: Final = "pins.json"
POLL_INTERVAL_S: Final = 1.0
MAX_SERVERS: Final = 2000  # in the file
_FORMAT_VERSION: Final = 1


class ScheduledCall(Protocol):
    """A call that is scheduled."""

    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], ScheduledCall]


class _Content(msgspec.Struct, omit_defaults=True):
    format: int
    servers: dict[str, ServerPins] = {}


class DamagedPinsError(Exception):
    """Raised if the file of the pins exists and cannot be read."""


class PinFile:
    """The file with the pins of all servers of a user or a gateway."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> dict[str, ServerPins]:
        """Return the pins by `server_key`. Raises `DamagedPinsError` if the file cannot be read."""
        try:
            content = msgspec.json.decode(read_private(self.path), type=_Content)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, msgspec.MsgspecError) as exc:
            raise DamagedPinsError(str(exc)) from None
        if content.format != _FORMAT_VERSION:
            raise DamagedPinsError(f"format {content.format}")
        return content.servers

    def save(self, changed: Iterable[ServerPins]) -> None:
        """Write the pins of these servers. Approvals that the file has are kept. Raises `OSError`."""
        with locked(self.path):
            servers = self.load()
            for own in changed:
                key = server_key(own.name, own.identity)
                servers[key] = merge_approvals(own, servers.pop(key, None))
            for key in [*servers][: max(0, len(servers) - MAX_SERVERS)]:
                del servers[key]  # not used for the longest time
            self._write(servers)

    def approve(self, server: ServerPins, digests: Mapping[str, str], now: float) -> list[str]:
        """Approve received definitions of a server: their digests by `kind/name`. Return the approved items.

        Raises `ConfigError` if the file cannot be read or written.
        """
        try:
            with locked(self.path):
                servers = self.load()
                stored = servers.get(server_key(server.name, server.identity))
                approved = approve(stored, digests, now) if stored is not None else []
                if approved:
                    self._write(servers)
        except (OSError, DamagedPinsError) as exc:
            raise ConfigError(
                "the approval cannot be saved",
                detail=f"{self.path}: {exc}",
                hint=f"check the file and its folder; to start without pins, remove {self.path}",
                code="E-PINS-FILE",
            ) from None
        return approved

    def modified(self) -> tuple[int, int]:
        """Return a value that differs if the file was replaced."""
        try:
            found = self.path.stat()
        except OSError:
            return (0, 0)
        return (found.st_ino, found.st_mtime_ns)

    def _write(self, servers: dict[str, ServerPins]) -> None:
        write_private(self.path, msgspec.json.encode(_Content(_FORMAT_VERSION, servers)))


def merge_approvals(own: ServerPins, stored: ServerPins | None) -> ServerPins:
    """Return our pins of a server with the approvals that another process has stored meanwhile."""
    if stored is None or stored.identity != own.identity:
        return own
    pins, deviations = dict(own.pins), dict(own.deviations)
    for key, pin in stored.pins.items():
        known = pins.get(key)
        if pin.approved and (known is None or pin.since >= known.since):
            pins[key] = pin
            if key in deviations and deviations[key].digest == pin.digest:
                del deviations[key]
    return ServerPins(own.name, own.identity, pins, deviations, own.listed)


class PinKeeper:
    """Reviews the lists of all servers for the catalog, with pins in a file or only in memory."""

    def __init__(
        self,
        file: PinFile | None,
        mode_of: Callable[[str], PinMode],
        now: Callable[[], float],
        on_approved: Callable[[str], None],
        report: Callable[[str, str], None],
        call_later: CallLater,
    ) -> None:
        """Create the keeper.

        Args:
            file: where the pins are stored; None keeps them in memory.
            mode_of: returns the setting `pins` of a server.
            now: returns the Unix time.
            on_approved: called with a server whose definitions were approved, to review its lists again.
            report: called with a server (or "") and a warning for the log.
            call_later: calls a function after some seconds, once.
        """
        self._call_later = call_later
        self._file = file
        self._on_approved = on_approved
        self._report = report
        self._timer: ScheduledCall | None = None
        self._modified = (0, 0)
        servers: dict[str, ServerPins] = {}
        damaged = False
        if file is not None:
            self._modified = file.modified()
            try:
                servers = file.load()
            except DamagedPinsError as exc:
                damaged = True
                report("", f"the pins in {file.path} cannot be read ({exc}): unknown definitions are not trusted")
        self.review_state = PinReview(servers, mode_of, now, trusts_first_sight=not damaged)
        self._damaged = damaged

    def start_server(self, server: str, identity: str) -> None:
        """Begin with a server, or with another one under its name. `identity` is its fingerprint."""
        self.review_state.start_server(server, hashlib.sha256(identity.encode()).hexdigest()[:16])

    def review(self, server: str, kind: str, items: Mapping[str, Json]) -> dict[str, Deviation]:
        """Return the held items of a list by name. New pins are on disk when this returns."""
        held = self.review_state.review(server, kind, items)
        self._save()
        if held and self._timer is None and self._file is not None:
            self._schedule()
        return held

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _save(self) -> None:
        state = self.review_state
        changed, state.changed_servers = state.changed_servers, set()
        if not changed or self._file is None or self._damaged:  # a damaged file is kept for its owner to see
            return
        try:
            self._file.save(state.servers[name] for name in changed)
            self._modified = self._file.modified()
        except (OSError, DamagedPinsError) as exc:
            self._report("", f"the pins cannot be saved in {self._file.path}: {exc}")

    def _schedule(self) -> None:
        self._timer = self._call_later(POLL_INTERVAL_S, self._poll)

    def _poll(self) -> None:
        """Read the file again if another process changed it. Runs while something is held."""
        assert self._file is not None
        self._timer = None
        modified = self._file.modified()
        if modified != self._modified:
            self._modified = modified
            self._reread()
        if any(each.held for pins in self.review_state.servers.values() for each in pins.deviations.values()):
            self._schedule()

    def _reread(self) -> None:
        assert self._file is not None
        try:
            stored = self._file.load()
        except DamagedPinsError as exc:
            self._report("", f"the pins in {self._file.path} cannot be read: {exc}")
            return
        servers = self.review_state.servers
        for name, own in [*servers.items()]:
            merged = merge_approvals(own, stored.get(server_key(name, own.identity)))
            if merged.pins != own.pins:
                servers[name] = merged
                self._on_approved(name)
