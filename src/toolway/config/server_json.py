"""`server.json`, as the MCP registry keeps it → the entries that it offers, and what they ask for.

A document describes packages and remotes; how a package is started follows from its registry. Each of them is one
offer. What is secret becomes a reference into our store, what else is required and has no default a variable. All other
text is literal: a document cannot refer to secrets of others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from toolway.config import jsonc
from toolway.config.asks import Ask, short_name
from toolway.config.fields import kind
from toolway.config.syntaxes import literal
from toolway.errors import ConfigError

_TEMPLATE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
_RUNNERS: Final = {"npm": "npx", "pypi": "uvx", "nuget": "dnx", "oci": "docker"}
_SURELY: Final = {"npx": ["-y"], "dnx": ["--yes"]}  # so that a first start does not stop at a question


@dataclass(frozen=True, slots=True)
class Offer:
    """One way to have the server. A bundle has to be fetched first: `entry` is None and `bundle` says from where."""

    label: str  # npm @scope/package 1.0.0
    entry: dict[str, Any] | None = field(repr=False)
    asks: tuple[Ask, ...] = ()
    bundle: str = ""
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Described:
    """A server of the registry."""

    name: str  # io.github.someone/the-server
    short: str  # the-server
    title: str
    version: str
    offers: tuple[Offer, ...]


def parse(text: str, file: str = "server.json") -> Described:
    """Raises `ConfigError`."""
    return read(jsonc.parse(text, file).value, file)


def read(document: Any, file: str = "server.json") -> Described:
    """A document, or an answer of the registry that holds one under `server`. Raises `ConfigError`."""
    if isinstance(document, Mapping) and isinstance(document.get("server"), Mapping):
        document = document["server"]
    if not isinstance(document, Mapping) or not isinstance(document.get("name"), str):
        raise _wrong(file, f"it holds {kind(document)} without a name")
    short = short_name(document["name"])
    offers = [_Offering(short).package(each) for each in _objects(document, "packages")]
    offers += [_Offering(short).remote(each) for each in _objects(document, "remotes")]
    usable = tuple(offer for offer in offers if offer is not None)
    if not usable:
        raise _wrong(file, "none of its packages and remotes can be used from here")
    title = document.get("title") or document.get("description") or ""
    return Described(document["name"], short, str(title), str(document.get("version", "")), usable)


class _Offering:
    def __init__(self, short: str) -> None:
        self._short = short
        self._asks: list[Ask] = []

    def package(self, package: Mapping[str, Any]) -> Offer | None:
        registry, identifier = str(package.get("registryType", "")), str(package.get("identifier", ""))
        version = str(package.get("version", ""))
        label = " ".join(filter(None, (registry, identifier, version)))
        if registry == "mcpb":
            return Offer(label, None, bundle=identifier, sha256=str(package.get("fileSha256", "")))
        runner = str(package.get("runtimeHint") or _RUNNERS.get(registry, ""))
        transport = package.get("transport", {})
        if not runner or not identifier or transport.get("type", "stdio") != "stdio":
            return None  # it would have to be started and then called by HTTP, which nobody here does
        env = self._values(_objects(package, "environmentVariables"), "env")
        before = self._arguments(_objects(package, "runtimeArguments"))
        after = self._arguments(_objects(package, "packageArguments"))
        if runner == "docker":
            missing = [word for name in env if name not in before for word in ("-e", name)]
            before = ["run", "-i", "--rm", *missing, *(word for word in before if word not in ("run", "-i", "--rm"))]
        else:
            before = [*(word for word in _SURELY.get(runner, []) if word not in before), *before]
        package_word = literal(_pinned(identifier, version, registry))
        entry: dict[str, Any] = {"command": literal(runner), "args": [*before, package_word, *after]}
        return Offer(label, entry | ({"env": env} if env else {}), tuple(self._asks))

    def remote(self, remote: Mapping[str, Any]) -> Offer | None:
        if not isinstance(remote.get("url"), str):
            return None
        entry: dict[str, Any] = {"url": self._filled(remote, remote["url"], "url")}
        if remote.get("type") == "sse":
            entry["type"] = "sse"
        headers = self._values(_objects(remote, "headers"), "headers")
        return Offer(remote["url"], entry | ({"headers": headers} if headers else {}), tuple(self._asks))

    def _values(self, inputs: list[Mapping[str, Any]], field_: str) -> dict[str, str]:
        named = ((str(each.get("name", "")), each) for each in inputs)
        found = {name: self._value(each, name, f"{field_}.{name}") for name, each in named if name}
        return {name: text for name, text in found.items() if text is not None}

    def _arguments(self, inputs: list[Mapping[str, Any]]) -> list[str]:
        words: list[str] = []
        for each in inputs:
            hint = str(each.get("name") or each.get("valueHint") or "argument").lstrip("-")
            bare = each.get("type") == "named" and not ({"value", "default", "valueHint"} & each.keys())
            text = None if bare else self._value(each, hint, "args")
            if bare or (text is not None and each.get("type") == "named"):
                words.append(literal(str(each["name"])))
            if text is not None:
                words.append(text)
        return words

    def _value(self, given: Mapping[str, Any], name: str, where: str) -> str | None:
        """The text of a value: what is fixed, else the default, else a reference; None for what may be left out."""
        if isinstance(given.get("value"), str):
            return self._filled(given, given["value"], where)
        return self._asked(given, name, where)

    def _filled(self, given: Mapping[str, Any], text: str, where: str) -> str:
        """A template with its variables in place."""
        variables = given.get("variables", {})

        def put(found: re.Match[str]) -> str:
            described = variables.get(found[1])
            if not isinstance(described, Mapping):
                return found[0]
            return self._asked({"isRequired": True, **described}, found[1], where) or ""

        return _TEMPLATE.sub(put, literal(text))

    def _asked(self, given: Mapping[str, Any], name: str, where: str) -> str | None:
        default = given.get("default")
        required, secret = bool(given.get("isRequired")), bool(given.get("isSecret"))
        stored = f"{self._short}.{re.sub(r'[^A-Za-z0-9_-]+', '-', name)}"
        choices = tuple(str(each) for each in given.get("choices") or ())
        ask = Ask(
            *(name, where, str(given.get("description", "")), required, secret, default, choices),
            many=bool(given.get("isRepeated")),
            secret_name=stored if secret else "",
        )
        self._asks.append(ask)
        if default is not None:
            return literal(str(default))
        if not required:
            return None
        return f"${{keyring:{stored}}}" if secret else f"${{{re.sub(r'[^A-Za-z0-9_]+', '_', name).upper()}}}"


def _pinned(identifier: str, version: str, registry: str) -> str:
    if not version or (registry == "oci" and re.search(r"[:@][^/]*$", identifier)):
        return identifier
    return f"{identifier}:{version}" if registry == "oci" else f"{identifier}@{version}"


def _objects(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    return list(_mappings(document.get(key)))


def _mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list):
        yield from (each for each in value if isinstance(each, Mapping))


def _wrong(file: str, evidence: str) -> ConfigError:
    return ConfigError(
        f"{file} does not describe a server that can be added",
        file=file,
        evidence=evidence,
        fix="add it by its command or its URL instead: toolway add NAME -- COMMAND",
        code="E-CONFIG-SERVER-JSON",
    )
