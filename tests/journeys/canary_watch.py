"""Canaries, and the eyes that look for them: in bytes, and in the arguments of every process of this machine."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import threading
import time

END = 10  # characters at each end of a canary that nothing else has


class Canaries:
    """The secrets, by place."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self.all: dict[str, str] = {}

    def __call__(self, place: str) -> str:
        return self.all.setdefault(place, hashlib.sha256(f"{self._seed} {place}".encode()).hexdigest()[:32])

    def forget(self, *places: str) -> None:
        for place in places:
            self.all.pop(place, None)

    def seen_in(self, data: bytes) -> set[str]:
        """The places whose secrets, or parts of them, are in `data`: as they are, or in base64."""
        whole = data + b" " + b" ".join(_decoded(word) for word in re.findall(rb"[A-Za-z0-9+/]{24,}={0,2}", data))
        return {
            place
            for place, secret in list(self.all.items())  # others may be added during the search
            if secret[:END].encode() in whole or secret[-END:].encode() in whole
        }


def _decoded(word: bytes) -> bytes:
    with contextlib.suppress(ValueError):
        return base64.b64decode(word + b"=" * (-len(word) % 4))
    return b""


class Arguments:
    """Watches the arguments of all processes of this machine while it is open: `leaks` are those with canaries."""

    def __init__(self, canary: Canaries) -> None:
        self.leaks: set[str] = set()
        self.looks = 0
        self._canary = canary
        self._seen: set[bytes] = set()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Arguments:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        looks_at: dict[str, int] = {}
        while not self._end.is_set():
            self.looks += 1
            for process in filter(str.isdigit, os.listdir("/proc")):
                # Arguments change only in the first moments of a process; later a look now and then is enough.
                looks_at[process] = looks_at.get(process, 0) + 1
                if looks_at[process] <= 50 or looks_at[process] % 50 == 0:
                    with contextlib.suppress(OSError):
                        self._look(process)
            time.sleep(0.04)  # commands and servers live longer than that

    def _look(self, process: str) -> None:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            words = file.read()
        if words in self._seen:
            return
        self._seen.add(words)
        for place in self._canary.seen_in(words):
            # A secret in the configured arguments of a server may appear in the arguments of that process only.
            if not (b"leaky.py\0" in words and "args" in place):
                self.leaks.add(f"{place} in the arguments of {words.split(bytes(1))[:3]!r}")
