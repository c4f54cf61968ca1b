"""The last `toolway doctor` result of each server, so `toolway` alone does not contradict it.

A small file in the state folder has the cause of the failure of each server definition, or "" if it worked. Only checks
of the last day count.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from toolway.config.schema import Server
from toolway.hub.source import server_fingerprint
from toolway.secrets.encrypted_file import write_private

if TYPE_CHECKING:
    from toolway.doctor.entry_checks import CheckTarget
    from toolway.doctor.report import Report

FILE_NAME: Final = "doctor.json"  # in the state folder
MAX_AGE_S: Final = 24 * 3600.0
MAX_ENTRIES: Final = 1000  # the oldest are dropped


class LastCheck(msgspec.Struct):
    """When a server was last checked, and why it failed; "" if it did not."""

    at: float
    cause: str


def store_report(folder: Path, targets: Iterable[CheckTarget], report: Report) -> None:
    """Store whether each server worked, and why not. A file that cannot be written is skipped."""
    now, found = time.time(), _load(folder)
    reports = {subject.name: subject for subject in report.subjects if subject.kind == "server"}
    for target in targets:
        subject = reports.get(target.name)
        if target.server is not None and subject is not None and not target.untrusted:
            failed = subject.checks_in("fail")
            fingerprint = server_fingerprint(target.server)
            found.pop(fingerprint, None)  # the newest are last
            found[fingerprint] = LastCheck(now, failed[0].message if failed else "")
    try:
        write_private(folder / FILE_NAME, msgspec.json.encode(dict(list(found.items())[-MAX_ENTRIES:])))
    except OSError:
        pass  # it only improves later messages


def load_causes(folder: Path, servers: Mapping[str, Server]) -> dict[str, str]:
    """Return why each server failed its last check, "" if it passed. Unchecked ones are left out."""
    found, oldest = _load(folder), time.time() - MAX_AGE_S
    known = {name: found.get(server_fingerprint(server)) for name, server in servers.items()} if found else {}
    return {name: each.cause for name, each in known.items() if each is not None and each.at > oldest}


def _load(folder: Path) -> dict[str, LastCheck]:
    try:
        return msgspec.json.decode((folder / FILE_NAME).read_bytes(), type=dict[str, LastCheck])
    except (OSError, msgspec.MsgspecError):
        return {}
