"""Stores pins (accepted definitions) in a file in the state folder, and reviews received lists with them.

The file holds the pins and what deviates from them, so `toolway trust tools` works without a running hub. A hub that
has something on hold checks once a second whether the file changed, and reads it again if so. Several processes use
one file. Each writes only the servers whose lists it reviewed, and only an approval replaces a pin in the file.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from toolway.catalog.pin_review import PinReview, ReviewedServer, count_held
from toolway.catalog.pins import Deviation, PinMode, ServerPins, approve, merge_review, merge_without_store, server_key
from toolway.errors import ConfigError
from toolway.events import DefinitionReviewed, Event, ServerLog
from toolway.secrets.encrypted_file import locked, read_private, write_private_parts
from toolway.types import Json

PIN_FILE_NAME: Final = "pins.json"
POLL_INTERVAL_S: Final = 1.0
SAVE_DELAY_S: Final = 0.1  # seconds; servers list their items shortly after one another and share a write
MAX_SERVERS: Final = 2000  # in the file
_FORMAT_VERSION: Final = 1


class ScheduledCall(Protocol):
    """Handle of a function call that is scheduled for later and can be cancelled."""

    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], ScheduledCall]
Saved = list[tuple[ServerPins, bool]]  # stored pins of a server, and False if a proposed pin was not accepted
#: (work in a thread, what is called in the event loop with its future)
RunInThread = Callable[[Callable[[], Saved], Callable[["asyncio.Future[Saved]"], None]], None]


class _Content(msgspec.Struct, omit_defaults=True):
    format: int
    servers: dict[str, ServerPins] = {}


class DamagedPinsError(Exception):
    """Raised when the pin file exists but cannot be read."""


class PinFile:
    """The file with the pins of all of a user's or gateway's servers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written: tuple[tuple[int, int], dict[str, ServerPins]] | None = None  # `modified()` and content

    def load(self) -> dict[str, ServerPins]:
        """Return the pins in the file, by `server_key`. Raises `DamagedPinsError` if the file cannot be read."""
        try:
            content = msgspec.json.decode(read_private(self.path), type=_Content)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, msgspec.MsgspecError) as exc:
            raise DamagedPinsError(str(exc)) from None
        if content.format != _FORMAT_VERSION:
            raise DamagedPinsError(f"format {content.format}")
        return content.servers

    def save(self, reviews: Sequence[ReviewedServer]) -> Saved:
        """Write the results of reviews (new pins and deviations) to the pin file.

        Return each server's stored pins, and False if a proposed pin was rejected, for example because another
        process has stored a different one. Raises `OSError` and `DamagedPinsError`.
        """
        saved = []
        with locked(self.path):
            known, self._written = self._written, None  # forgotten if the write fails: it is changed below
            servers = known[1] if known is not None and known[0] == self.modified() else self.load()
            for each in reviews:
                key = server_key(each.pins.name, each.pins.identity)
                merged = merge_review(servers.pop(key, None), each.pins, each.kinds, each.proposed)
                servers[key] = merged[0]
                saved.append(merged)
            for key in [*servers][: max(0, len(servers) - MAX_SERVERS)]:
                del servers[key]  # not used for the longest time
            self._write(servers)
            self._written = (self.modified(), servers)
        return saved

    def approve(self, server: ServerPins, digests: Mapping[str, str], now: float) -> list[str]:
        """Store definitions that the user accepted as a server's new pins.

        Return the keys (`kind/name`) that were approved. `digests` has, by key, the digest of the definition that the
        user has seen. Raises `ConfigError` if the file cannot be read or written.
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
                "the review cannot be saved",
                detail=f"{self.path}: {exc}",
                hint=f"check the file and its folder; to start without pins, remove {self.path}",
                code="E-PINS-FILE",
            ) from None
        return approved

    def modified(self) -> tuple[int, int]:
        """Return the file's inode and modification time, which differ after the file is replaced."""
        try:
            found = self.path.stat()
        except OSError:
            return (0, 0)
        return (found.st_ino, found.st_mtime_ns)

    def _write(self, servers: dict[str, ServerPins]) -> None:
        write_private_parts(self.path, _encode(servers))


def _encode(servers: Mapping[str, ServerPins]) -> Iterator[bytes]:
    """Yield the new content of the pin file in parts, because it may take megabytes."""
    yield b'{"format":%d,"servers":{' % _FORMAT_VERSION
    before = b""
    for key, pins in servers.items():
        yield before + msgspec.json.encode(key) + b":" + msgspec.json.encode(pins)
        before = b","
    yield b"}}"


class PinKeeper:
    """Compares the definitions that servers send with their pins, which are in a file or only in memory."""

    def __init__(
        self,
        file: PinFile | None,
        mode_of: Callable[[str], PinMode],
        now: Callable[[], float],
        on_changed: Callable[[str], None],
        emit: Callable[[Event], None],
        call_later: CallLater,
        ignored_of: Callable[[str, str], Sequence[str]] | None = None,
        run_in_thread: RunInThread | None = None,
    ) -> None:
        """Create the keeper of all servers' pins.

        Args:
            file: where the pins are stored; None keeps them in memory.
            mode_of: returns the setting `pins` of a server.
            now: returns the Unix time.
            on_changed: called with a server whose pins another process changed, to review its lists again.
            emit: reports an event.
            call_later: calls a function after some seconds, once.
            ignored_of: returns the paths of the parts that are not compared, for a server and the name of an item.
            run_in_thread: runs a function in a thread, then another one in the event loop. With it, the reviews of many
                servers share a write, and a new item is held until its pin is on disk, unless the mode is `note`.
                Without it, each review writes at once.
        """
        self._call_later = call_later
        self._save_timer: ScheduledCall | None = None
        self._saving: list[ReviewedServer] = []  # what a thread writes now
        self._unused: dict[str, ServerPins] = {}  # stored pins of servers whose lists are not reviewed again yet
        self._is_closed = False
        self._file = file
        self._now = now
        self._mode_of = mode_of
        self._on_changed = on_changed
        self._emit = emit
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
                self._warn(f"the pins in {file.path} cannot be read ({exc}): unknown definitions are not trusted")
        self._run_in_thread = run_in_thread if file is not None and not damaged else None
        self.review_state = PinReview(
            servers,
            mode_of,
            now,
            trusts_first_sight=not damaged,
            waits_for_store=self._run_in_thread is not None,
            ignored_of=ignored_of,
            on_deviation=self._on_deviation,
        )
        self._damaged = damaged

    def start_server(self, server: str, identity: str) -> None:
        """Load a server's pins (accepted definitions). Call this before the first review of its lists.

        `identity` is a fingerprint of the server's command or URL. If a server with this name was known under another
        identity, that server's pins are no longer used.
        """
        self.review_state.start_server(server, hash_identity(identity))

    def review(self, server: str, kind: str, items: Mapping[str, Json]) -> Mapping[str, object]:
        """Compare items that a server sent with their pins, and return those on hold, by name.

        The value is how the item deviates from its pin, or None if its new pin is not on disk yet.
        """
        state = self.review_state
        held = state.review(server, kind, items)
        if self._run_in_thread is not None and not self._is_closed:
            self._save_soon()
        elif not self._save():  # another process was first
            held = state.review(server, kind, items)
            self._save()
        if any(held.values()) and self._timer is None and self._file is not None:
            self._schedule()
        return held

    def digest(self, server: str, kind: str, name: str, definition: Json) -> str:
        return self.review_state.digest(server, kind, name, definition)

    def is_usable(self, server: str, kind: str, name: str, digest: str) -> bool:
        return self.review_state.is_usable(server, kind, name, digest)

    # -- for administrators

    def list_servers(self) -> list[ServerPins]:
        """Return the pins (accepted definitions) of the current servers, with received definitions that deviate."""
        return [*self.review_state.servers.values()]

    async def approve(self, server: str, digests: Mapping[str, str], who: str = "") -> list[str]:
        """Store definitions that the user accepted as a server's new pins.

        Return the keys (`kind/name`) that were approved. `digests` has, by key, the digest of the definition that the
        user has seen. `who` is the id of the principal. Raises `ConfigError` if the file cannot be read or written.
        """
        own = self.review_state.servers[server]
        if self._file is None:
            approved = approve(own, digests, self._now())
        else:
            await self._finish_saving()
            approved = await asyncio.to_thread(self._file.approve, own, digests, self._now())
            self._reread(who)
        for key in approved if self._file is None else ():
            self._emit(review_event("accepted", own, key, who=who))
        if self._file is None:
            self._on_changed(server)
        return approved

    def close(self) -> None:
        """Stop the timers, and write pins and deviations that are not on disk yet."""
        self._is_closed = True
        for timer in (self._timer, self._save_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._save_timer = None
        self._save()

    # -- file

    def _save(self) -> bool:
        """Store the pins and deviations that reviews changed, and use what is stored afterwards.

        Return False if a proposed pin was rejected, for example because another process has stored a different one;
        the list must then be reviewed again.
        """
        state = self.review_state
        if not state.changed:
            return True
        reviews = state.take_changed()
        if self._file is None or self._damaged:  # a damaged file is kept for its owner to see
            saved = _merge_in_memory(reviews)
        else:
            file = self._file
            saved = self._saved_or_merged(lambda: file.save(reviews), reviews)
        for pins, _ in saved:
            state.adopt(pins)
        return all(accepted for _, accepted in saved)

    def _saved_or_merged(self, save: Callable[[], Saved], reviews: Sequence[ReviewedServer]) -> Saved:
        """Save reviewed pins with `save`, and return its result. If the file cannot be written, keep them in memory."""
        assert self._file is not None
        try:
            saved = save()
        except (OSError, DamagedPinsError) as exc:
            self._warn(f"the pins cannot be saved in {self._file.path}: {exc}")
            return _merge_in_memory(reviews)
        self._modified = self._file.modified()
        return saved

    def _save_soon(self) -> None:
        """Schedule a write of changed pins after a short delay, so reviews of many servers share a write."""
        if self.review_state.changed and self._save_timer is None and not self._saving:
            self._save_timer = self._call_later(SAVE_DELAY_S, self._start_save)

    async def _finish_saving(self) -> None:
        """Wait until all pins and deviations that reviews changed are on disk.

        An approval needs that, because it is compared with the file.
        """
        while (self._saving or self.review_state.changed) and self._run_in_thread is not None and not self._is_closed:
            if not self._saving:
                if self._save_timer is not None:
                    self._save_timer.cancel()
                self._start_save()
            await asyncio.sleep(0.01)

    def _start_save(self) -> None:
        self._save_timer = None
        assert self._run_in_thread is not None and self._file is not None
        file, reviews = self._file, self.review_state.take_changed()
        self._saving = reviews
        try:
            self._run_in_thread(lambda: file.save(reviews), self._on_saved)
        except RuntimeError:  # the interpreter shuts down and starts no thread
            self._saving = []
            self._saved_or_merged(lambda: file.save(reviews), reviews)

    def _on_saved(self, done: asyncio.Future[Saved]) -> None:
        reviews, self._saving = self._saving, []
        saved = self._saved_or_merged(done.result, reviews)
        if self._is_closed:
            return
        state = self.review_state
        for pins, accepted in saved:
            own = state.servers.get(pins.name)
            if own is None or own.identity != pins.identity:
                continue  # another server has this name now
            if accepted and pins.name not in state.changed and self._mode_of(pins.name) == "warn":
                state.adopt(pins)  # all its items are in use already
            else:
                self._unused[pins.name] = pins
        self._use_next()

    def _use_next(self) -> None:
        """Take the stored pins of one server from `_unused`, and review the lists of that server with these pins.

        The next server follows in another callback, which frees the event loop between them.
        """
        if self._is_closed:
            return
        if not self._unused:
            self._save_soon()
            return
        name = next(iter(self._unused))
        pins = self._unused.pop(name)
        if (own := self.review_state.servers.get(name)) is not None and own.identity == pins.identity:
            self.review_state.adopt(pins)
            self._on_changed(name)
        self._call_later(0.0, self._use_next)

    def _schedule(self) -> None:
        self._timer = self._call_later(POLL_INTERVAL_S, self._poll)

    def _poll(self) -> None:
        """Read the pin file again if another process changed it.

        Called once a second while a definition needs review.
        """
        assert self._file is not None
        self._timer = None
        if not self._saving and self._file.modified() != self._modified:
            self._reread()
        if count_held(self.list_servers()):
            self._schedule()

    def _reread(self, who: str = "") -> None:
        """Read the pin file, use the pins that differ from those in memory, and review the lists of these servers.

        Emits an event for each approved pin among them, with the user in `who`.
        """
        assert self._file is not None
        self._modified = self._file.modified()
        try:
            stored = self._file.load()
        except DamagedPinsError as exc:
            self._warn(f"the pins in {self._file.path} cannot be read: {exc}")
            return
        for name, own in [*self.review_state.servers.items()]:
            found = stored.get(server_key(name, own.identity))
            if found is None or found.pins == own.pins:
                continue
            self.review_state.adopt(found)
            for key, pin in found.pins.items():
                if pin.approved and pin != own.pins.get(key):
                    self._emit(review_event("accepted", found, key, who=who))
            self._on_changed(name)

    # -- events

    def _on_deviation(self, server: str, key: str, deviation: Deviation | None) -> None:
        action = "released" if deviation is None else "on_hold" if deviation.held else "noted"
        self._emit(review_event(action, self.review_state.servers[server], key, deviation))

    def _warn(self, text: str) -> None:
        self._emit(ServerLog("", "warning", text, "toolway"))


def _merge_in_memory(reviews: Sequence[ReviewedServer]) -> Saved:
    return [(merge_without_store(each.pins, each.kinds, each.proposed), True) for each in reviews]


def hash_identity(identity: str) -> str:
    """Return a short hash of a server's fingerprint, which may contain secrets from the configuration."""
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def review_event(
    action: str, pins: ServerPins, key: str, deviation: Deviation | None = None, who: str = ""
) -> DefinitionReviewed:
    """Return the event `DefinitionReviewed` about the definition `key` (`kind/name`) of a server."""
    kind, _, name = key.partition("/")
    pin = pins.pins.get(key)
    digest = deviation.digest if deviation is not None else pin.digest if pin is not None else ""
    reason = deviation.reason if deviation is not None else ""
    finding = deviation.findings[0] if deviation is not None and deviation.findings else ""
    return DefinitionReviewed(pins.name, action, kind, name, reason, digest, finding, who, count_held([pins]))
