"""What `toolway doctor` last found about each server, so that `toolway` alone does not contradict it.

A small file in the state folder has the cause of the failure of each server definition, or "" if it worked. Only checks
of the last day count.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from toolway.config.schema import Server
from toolway.gateway.state_dir import StateDir
from toolway.hub.source import server_fingerprint
from toolway.secrets.encrypted_file import write_private

if TYPE_CHECKING:
    from toolway.doctor.entry_checks import CheckTarget
    from toolway.doctor.report import Report

MAX_AGE_S: Final = 24 * 3600.0
MAX_ENTRIES: Final = 1000  # the oldest are dropped


class _Found(msgspec.Struct):
    at: float
    cause: str


def _file() -> Path:
    return StateDir.default(os.environ).folder / "doctor.json"


def _load() -> dict[str, _Found]:
    try:
        return msgspec.json.decode(_file().read_bytes(), type=dict[str, _Found])
    except (OSError, msgspec.MsgspecError):
        return {}


def store_report(targets: Iterable[CheckTarget], report: Report) -> None:
    """Store whether each server worked, and why not. A file that cannot be written is skipped."""
    now, found = time.time(), _load()
    reports = {subject.name: subject for subject in report.subjects if subject.kind == "server"}
    for target in targets:
        subject = reports.get(target.name)
        if target.server is not None and subject is not None and not target.untrusted:
            failed = subject.checks_in("fail")
            fingerprint = server_fingerprint(target.server)
            found.pop(fingerprint, None)  # the newest are last
            found[fingerprint] = _Found(now, failed[0].message if failed else "")
    try:
        write_private(_file(), msgspec.json.encode(dict(list(found.items())[-MAX_ENTRIES:])))
    except OSError:
        pass  # it only improves later messages


def load_causes(servers: Mapping[str, Server]) -> dict[str, str]:
    """Return why each of these servers failed at its last check, "" if it worked. Unchecked servers are left out."""
    found, oldest = _load(), time.time() - MAX_AGE_S
    known = {name: found.get(server_fingerprint(server)) for name, server in servers.items()} if found else {}
    return {name: each.cause for name, each in known.items() if each is not None and each.at > oldest}
