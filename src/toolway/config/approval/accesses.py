"""Lists what a config file's entries run, read, and send, for deciding whether to trust it.

This only examines the file's text: variables are not expanded, and references are not resolved.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

from toolway.config.entry_transport import URL_KEYS, find_kind, find_own_transport
from toolway.config.variables import WrittenReference, split_references

AccessKind = Literal["runs", "reads", "sends"]
_FILE_KEYS: Final = frozenset({"envFile", "tls.caFile", "tls.certFile", "tls.keyFile"})
_WHOLE_ENVIRONMENT: Final = "all variables of your environment"


class Access(msgspec.Struct, frozen=True):
    """A program that a config file runs, or data that it reads or sends, with the key that configures this."""

    kind: AccessKind
    what: str  # a command line, a path, or a reference as written
    key: str  # path of the key in the entry, such as `env.API_TOKEN`
    server: str = ""  # empty: the `toolway` block
    to: str = ""  # receiver of what is sent: a URL, or a command line

    def __str__(self) -> str:
        return f"{self.kind} {self.what}{f' to {self.to}' if self.to else ''}"

    def to_json(self) -> dict[str, str]:
        return {
            "what": self.what,
            **({"to": self.to} if self.to else {}),
            **({"server": self.server} if self.server else {}),
            "key": self.key,
        }


def find_accesses(servers: Mapping[str, Any], block: Any = None) -> list[Access]:
    """Return the programs that server entries and their `toolway` block run, and the data they read and send."""
    found = [access for name, entry in servers.items() for access in entry_accesses(entry, name)]
    if signer := audit_signer(block):
        found.append(Access("runs", signer, "toolway.audit.signer"))
    if isinstance(block, Mapping):
        found += model_url_accesses(block.get("modelUrls"))
    for name, entry in agent_entries(block).items():
        found += agent_accesses(entry, f"toolway.agents.{name}")
    for key, text in iter_texts(block):
        found += _reference_accesses(text, f"toolway.{key}", "", _block_receiver(block, key, text))
    return found


def audit_signer(block: Any) -> str:
    """Return the command in a `toolway` block's `toolway.audit.signer`, or "" if it is not set."""
    audit = block.get("audit") if isinstance(block, Mapping) else None
    signer = audit.get("signer") if isinstance(audit, Mapping) else None
    return signer if isinstance(signer, str) else ""


def agent_entries(block: Any) -> Mapping[str, Any]:
    """Return the entries in a `toolway` block's `toolway.agents`, by name."""
    found = block.get("agents") if isinstance(block, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def agent_accesses(entry: Any, key: str) -> list[Access]:
    """Return the models that an agent, and the agents inside it, send prompts and results to."""
    found, waiting = [], [entry]
    while waiting:
        agent = waiting.pop()
        if not isinstance(agent, Mapping):
            continue
        url = agent.get("baseUrl") or agent.get("base_url")
        to = f"{agent.get('model')} at {url}" if url else str(agent.get("model"))
        found.append(Access("sends", "prompts and the results of its tools", key, to=to))
        if isinstance(agent.get("agents"), Mapping):
            waiting += agent["agents"].values()
    return found


def model_url_accesses(urls: Any) -> list[Access]:
    """Return one access for each address in `toolway.modelUrls`, which may receive a model provider's API key."""
    listed = urls if isinstance(urls, list) else [urls] if urls else []
    return [Access("sends", "the API keys of model providers", "toolway.modelUrls", to=str(each)) for each in listed]


def entry_accesses(entry: Any, server: str = "") -> list[Access]:
    """Return the programs that a server entry runs, and the data that it reads and sends."""
    if isinstance(entry, str):
        entry = {"url": entry} if "://" in entry.split(" ", 1)[0] else {"command": entry}
    if not isinstance(entry, Mapping):
        return []
    command_line = _command_line(entry)
    found = [Access("runs", command_line, "command", server)] if command_line else []
    own = find_own_transport(entry)
    if own is None and (kind := find_kind(entry)):  # code of another distribution, which may do anything with the entry
        found.append(Access("runs", f"the transport {kind}", "type" if "type" in entry else kind, server))
    file_keys = _FILE_KEYS.union(f"{own.kind}.{key}" for key in own.file_keys) if own is not None else _FILE_KEYS
    for key, text in iter_texts(entry):
        receiver = _receiver(entry, key, command_line)
        found += _reference_accesses(text, key, server, receiver)
        if key in file_keys and text:
            found.append(Access("reads", text, key, server))
        if key == "envFile" and text:
            found.append(Access("sends", f"the variables in {text}", key, server, receiver))
        if key in ("envPolicy", "env_policy") and text == "inherit":
            found.append(Access("sends", _WHOLE_ENVIRONMENT, key, server, receiver))
    return found


def runs_secret_command(value: Any) -> bool:
    """Return True if any text in a config file value, however deep, has a reference `${command:…}`."""
    return any(
        isinstance(part, WrittenReference) and part.kind == "command"
        for _, text in iter_texts(value)
        for part in split_references(text)
    )


def _reference_accesses(text: str, key: str, server: str, receiver: str) -> Iterator[Access]:
    for part in split_references(text):
        if isinstance(part, str):
            continue
        if part.kind == "command":
            yield Access("runs", part.target, key, server)
        elif part.kind == "file":
            yield Access("reads", part.target, key, server)
        elif part.kind == "keyring":
            yield Access("reads", part.text, key, server)
        yield Access("sends", part.text, key, server, receiver)


def _command_line(entry: Mapping[str, Any]) -> str:
    command, args = entry.get("command"), entry.get("args")
    if not isinstance(command, str) or not command:
        return ""
    words = [str(each) for each in args] if isinstance(args, list | tuple) else []
    return " ".join([command, *map(shlex.quote, words)])


def _receiver(entry: Mapping[str, Any], key: str, command_line: str) -> str:
    """Return who receives the value under `key` in a server entry.

    This is the entry's command line, or the host of a URL in it.
    """
    auth, own = entry.get("auth"), find_own_transport(entry)
    settings = entry[own.kind] if own is not None and isinstance(entry[own.kind], Mapping) else {}
    if key == "healthCheckUrl":
        return _origin(entry[key])
    if key == "health.url":
        return _origin(entry["health"]["url"])
    if key.startswith("auth.") and isinstance(auth, Mapping) and isinstance(auth.get("issuer"), str):
        return _origin(auth["issuer"])
    receiver = own.receiver_key(key.removeprefix(f"{own.kind}.")) if own and key.startswith(f"{own.kind}.") else ""
    if isinstance(settings.get(receiver), str):
        return _origin(settings[receiver])
    urls = [entry[each] for each in URL_KEYS if isinstance(entry.get(each), str)]
    urls += [settings[each] for each in own.url_keys if isinstance(settings.get(each), str)] if own is not None else []
    return command_line or (_origin(urls[0]) if urls else "the server")


def _block_receiver(block: Any, key: str, text: str) -> str:
    alerts = block.get("alerts") if isinstance(block, Mapping) else None
    if key.startswith("alerts.headers.") and isinstance(alerts, Mapping) and isinstance(alerts.get("webhook"), str):
        return _origin(alerts["webhook"])
    return _origin(text) if "://" in text else f"the setting toolway.{key}"


def _origin(url: str) -> str:
    """Return a URL's scheme and host, leaving out path and query, which may contain a secret."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else url


def iter_texts(value: Any) -> Iterator[tuple[str, str]]:
    """Yield each string inside a JSON value, with its key path. Items of a list have the list's path.

    This does not use recursion, because a file may be deeply nested.
    """
    pending = [("", value)]
    while pending:
        path, current = pending.pop()
        if isinstance(current, str):
            yield path, current
        elif isinstance(current, Mapping):
            inner = [(f"{path}.{key}" if path else str(key), each) for key, each in current.items()]
            pending += reversed(inner)
        elif isinstance(current, list | tuple):
            pending += [(path, each) for each in reversed(current)]
