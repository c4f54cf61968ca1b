"""What a registry says about a server, as it is read from an answer. Pure.

An answer is untrusted: a record that cannot be used is left out of a list, and rejected if it was asked for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from toolway.errors import ToolwayError
from toolway.parts.registry.publisher import is_name, is_version
from toolway.protocol.sanitize import sanitize

_META_KEY: Final = "io.modelcontextprotocol.registry/official"
_MAX_TEXT_CHARS: Final = 300  # of a description
_MAX_KIND_CHARS: Final = 20
#: Where packages of each kind are, without `registry.` or `api.`. Runners such as npx ask these.
_PACKAGE_HOSTS: Final[Mapping[str, tuple[str, ...]]] = {
    "npm": ("npmjs.org",),
    "pypi": ("pypi.org",),
    "nuget": ("nuget.org",),
    "oci": ("docker.io", "ghcr.io"),
    "mcpb": ("github.com", "gitlab.com"),
}


class ServerRecord(msgspec.Struct, frozen=True):
    """One version of a server in a registry."""

    name: str
    version: str
    document: dict[str, Any]  # its server.json; untrusted
    description: str = ""
    status: str = "active"  # active, deprecated or deleted
    message: str = ""  # why it is deprecated or deleted
    published: str = ""  # date
    is_latest: bool = False

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the document, whatever the order of its keys."""
        text = json.dumps(self.document, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def kinds(self) -> list[str]:
        """Return how it can run: kinds of packages, and `remote`."""
        found = [sanitize(str(each.get("registryType", "")), _MAX_KIND_CHARS) for each in _objects(self, "packages")]
        return sorted({*filter(None, found), *(["remote"] if _objects(self, "remotes") else [])})


class Page(NamedTuple):
    """One page of a list of servers."""

    records: list[ServerRecord]  # those that can be used
    cursor: str  # of the next page, or ""
    listed: int  # how many records it has


def read_page(body: bytes, registry: str) -> Page:
    """Return a page of a list of servers, without records that cannot be used. Raises `ToolwayError`."""
    answer = _decode(body, registry)
    listed = answer.get("servers")
    if not isinstance(listed, list):
        raise invalid_answer(registry, "it has no list of servers")
    metadata = answer.get("metadata")
    cursor = metadata.get("nextCursor") if isinstance(metadata, Mapping) else ""
    records = [record for each in listed if (record := _read(each)) is not None]
    return Page(records, cursor if isinstance(cursor, str) else "", len(listed))


def read_record(body: bytes, registry: str, name: str, version: str) -> ServerRecord:
    """Return the record that was asked for. Raises `ToolwayError` if the answer is another one."""
    record = _read(_decode(body, registry))
    if record is None:
        raise invalid_answer(registry, "it describes no server")
    if record.name != name or version not in ("latest", record.version):
        raise invalid_answer(registry, f"asked for {name} {version}, it describes {record.name} {record.version}")
    return record


def usable_document(record: ServerRecord, registries: tuple[str, ...]) -> dict[str, Any]:
    """Return the document without what must not be used: other package registries, and remotes without TLS.

    `npx` and similar programs ask the registry that they are set up for, so a package elsewhere would be another
    package. Raises `ToolwayError` if nothing is left.
    """
    hosts = {urlsplit(each).netloc for each in registries}
    packages = [each for each in _objects(record, "packages") if _is_usable(each, hosts)]
    remotes = [each for each in _objects(record, "remotes") if str(each.get("url", "")).startswith("https://")]
    if not packages and not remotes:
        raise ToolwayError(
            f"{record.name} {record.version} cannot be added from a registry",
            detail="its packages are in other package registries, and its remotes have no https:// address",
            hint="add it by its command or its URL instead: toolway add NAME -- COMMAND",
            code="E-REGISTRY-PACKAGE",
        )
    return {**record.document, "packages": packages, "remotes": remotes}


def invalid_answer(registry: str, detail: str) -> ToolwayError:
    """Return the error for an answer that is not one of a registry."""
    return ToolwayError(
        f"{registry} sent an answer that cannot be used",
        detail=detail,
        hint="check its address in toolway.registries, or report it to whoever runs the registry",
        code="E-REGISTRY-ANSWER",
    )


def _is_usable(package: Mapping[str, Any], hosts: set[str]) -> bool:
    base = package.get("registryBaseUrl")
    if base is None:
        return True
    try:
        host = urlsplit(base).netloc if isinstance(base, str) else ""
    except ValueError:
        return False
    public = host.removeprefix("registry.").removeprefix("api.")
    return public in _PACKAGE_HOSTS.get(str(package.get("registryType", "")), ()) or host in hosts


def _read(value: Any) -> ServerRecord | None:
    document = value.get("server") if isinstance(value, Mapping) else None
    if not isinstance(document, dict):
        return None
    name, version = document.get("name"), document.get("version")
    if not isinstance(name, str) or not isinstance(version, str) or not is_name(name) or not is_version(version):
        return None
    meta = value.get("_meta")
    facts = meta.get(_META_KEY) if isinstance(meta, Mapping) else None
    facts = facts if isinstance(facts, Mapping) else {}
    status = facts.get("status", "active")
    return ServerRecord(
        name,
        version,
        document,
        _text(document.get("description")),
        status if status in ("active", "deprecated") else "deleted",
        _text(facts.get("statusMessage")),
        _text(facts.get("publishedAt"))[:10],
        facts.get("isLatest") is True,
    )


def _text(value: Any) -> str:
    return " ".join(sanitize(value[: 2 * _MAX_TEXT_CHARS], _MAX_TEXT_CHARS).split()) if isinstance(value, str) else ""


def _objects(record: ServerRecord, key: str) -> list[dict[str, Any]]:
    value = record.document.get(key)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _decode(body: bytes, registry: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body)
        json.dumps(found)  # fails for what is nested too deeply to compute its digest
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as exc:
        raise invalid_answer(registry, f"it is not JSON: {type(exc).__name__}") from None
    if not isinstance(found, dict):
        raise invalid_answer(registry, "it is not a JSON object")
    return found
