"""Parser for `server.json` of the MCP registry: returns install options and their inputs.

A document describes packages and remotes; each becomes one install option. The registry of a package determines its
start command. Secret inputs become references to our secret store, other inputs are replaced by the user's answers.
All other text is escaped: a document cannot refer to secrets of other servers. A document is untrusted: its entry must
pass the admission rules, see `admission_policy`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from toolway.config.admission.entry import AdmissionPolicy, runner_commands
from toolway.config.editing import jsonc
from toolway.config.field_reader import json_type_name
from toolway.config.loader import normalize_name
from toolway.config.variables import escape_literal
from toolway.errors import ConfigError


@dataclass(frozen=True, slots=True)
class InstallInput:
    """Value that an install option needs from the user, such as a token or a path.

    A secret is kept in the secret store under `secret_name`, not in a file.
    """

    name: str  # for example TOKEN
    target: str  # env.TOKEN, headers.Authorization, args, url
    description: str = ""
    required: bool = False
    secret: bool = False
    default: Any = None
    choices: tuple[str, ...] = ()
    allows_many: bool = False  # several values are allowed
    secret_name: str = ""  # name in the secret store

    @property
    def needs_value(self) -> bool:
        """Return True if the user must supply this input: it is required and has no default."""
        return self.required and self.default is None

    @property
    def is_env_value(self) -> bool:
        """Return True if the input is the complete value of the environment variable with its name."""
        return self.target == f"env.{self.name}"


def short_server_name(name: str) -> str:
    """Return the entry name of a registry server: `io.github.user/the-server` → `the-server`."""
    return normalize_name(name.rpartition("/")[2] or name)


_TEMPLATE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
_RUNNERS: Final = {"npm": "npx", "pypi": "uvx", "nuget": "dnx", "oci": "docker"}
_CONFIRM_FLAGS: Final = {"npx": ["-y"], "dnx": ["--yes"]}  # otherwise the first start would wait for a confirmation


@dataclass(frozen=True, slots=True)
class InstallOption:
    """One way to install a server: a package, a remote URL or an MCPB bundle.

    `entry` is the config entry to add. For a bundle it is None, and `bundle` is the download URL.
    """

    label: str  # npm @scope/package 1.0.0
    entry: dict[str, Any] | None = field(repr=False)
    inputs: tuple[InstallInput, ...] = ()
    bundle: str = ""
    sha256: str = ""
    registry: str = ""  # npm, pypi, oci, nuget; empty for a remote
    package: str = ""  # identifier with its version, as the runner takes it; empty for a remote


@dataclass(frozen=True, slots=True)
class RegistryServer:
    """Server described by `server.json` of the MCP registry, with its install options."""

    name: str  # io.github.user/the-server
    short_name: str  # the-server
    title: str
    version: str
    options: tuple[InstallOption, ...]


def parse_server_json(
    text: str, file: str = "server.json", *, name: str = "", answers: Mapping[str, str] | None = None
) -> RegistryServer:
    """Parse the text of a `server.json` file.

    Its entry is called `name`, or else as the document says; `answers` are the user's values for its inputs. Raises
    `ConfigError` if it is not JSON, or has no name or no supported install option.
    """
    return read_server_document(jsonc.parse_jsonc(text, file).value, file, name=name, answers=answers)


def read_server_document(
    document: Any, file: str = "server.json", *, name: str = "", answers: Mapping[str, str] | None = None
) -> RegistryServer:
    """Return the server described by a parsed `server.json` or by a registry response.

    The response has the document under `server`. Raises `ConfigError` if the document has no name or no supported
    install option.
    """
    if isinstance(document, Mapping) and isinstance(document.get("server"), Mapping):
        document = document["server"]
    if not isinstance(document, Mapping) or not isinstance(document.get("name"), str):
        raise _server_json_error(file, f"it holds {json_type_name(document)} without a name")
    short = name or short_server_name(document["name"])
    given = answers or {}
    options = [_OptionBuilder(short, given).build_from_package(each) for each in _list_objects(document, "packages")]
    options += [_OptionBuilder(short, given).build_from_remote(each) for each in _list_objects(document, "remotes")]
    usable = tuple(offer for offer in options if offer is not None)
    if not usable:
        raise _server_json_error(file, "none of its packages and remotes is supported")
    title = document.get("title") or document.get("description") or ""
    return RegistryServer(document["name"], short, str(title), str(document.get("version", "")), usable)


def admission_policy(option: InstallOption, answers: Mapping[str, str]) -> AdmissionPolicy:
    """Return the admission policy for the entry of an install option, from the document and the user's answers.

    The entry may contain only what the document declares, and the answers.
    """
    entry = option.entry or {}
    return AdmissionPolicy(
        commands=runner_commands(option.registry),
        package=option.package,
        variables=frozenset(entry.get("env", {})),
        named_by_user=frozenset(
            ask.name for ask in option.inputs if ask.is_env_value and (ask.secret or ask.name in answers)
        ),
        volumes=tuple(text.rstrip("/") for text in answers.values() if text.startswith("/") and text.strip("/")),
        secrets=frozenset(ask.secret_name for ask in option.inputs if ask.secret),
    )


class _OptionBuilder:
    def __init__(self, short: str, answers: Mapping[str, str]) -> None:
        self._short = short
        self._answers = answers
        self._inputs: list[InstallInput] = []

    def build_from_package(self, package: Mapping[str, Any]) -> InstallOption | None:
        registry, identifier = str(package.get("registryType", "")), str(package.get("identifier", ""))
        version = str(package.get("version", ""))
        label = " ".join(filter(None, (registry, identifier, version)))
        if registry == "mcpb":
            return InstallOption(label, None, bundle=identifier, sha256=str(package.get("fileSha256", "")))
        runner = str(package.get("runtimeHint") or _RUNNERS.get(registry, ""))
        transport = package.get("transport", {})
        kind = transport.get("type", "stdio") if isinstance(transport, Mapping) else ""
        if not runner or not identifier or kind != "stdio":
            return None  # a local process with an HTTP endpoint; Toolway cannot start one
        env = self._build_values(_list_objects(package, "environmentVariables"), "env")
        before = self._build_arguments(_list_objects(package, "runtimeArguments"))
        after = self._build_arguments(_list_objects(package, "packageArguments"))
        if runner == "docker":
            missing = [word for name in env if name not in before for word in ("-e", name)]
            before = ["run", "-i", "--rm", *missing, *(word for word in before if word not in ("run", "-i", "--rm"))]
        else:
            before = [*(word for word in _CONFIRM_FLAGS.get(runner, []) if word not in before), *before]
        package_word = _pin_version(identifier, version, registry)
        if runner == "dnx" and after:
            after = ["--", *after]  # otherwise dnx would read them
        entry: dict[str, Any] = {
            "command": escape_literal(runner),
            "args": [*before, escape_literal(package_word), *after],
        }
        entry |= {"env": env} if env else {}
        return InstallOption(label, entry, tuple(self._inputs), registry=registry, package=package_word)

    def build_from_remote(self, remote: Mapping[str, Any]) -> InstallOption | None:
        if not isinstance(remote.get("url"), str):
            return None
        entry: dict[str, Any] = {"url": self._expand_template(remote, remote["url"], "url")}
        if remote.get("type") == "sse":
            entry["type"] = "sse"
        headers = self._build_values(_list_objects(remote, "headers"), "headers")
        return InstallOption(remote["url"], entry | ({"headers": headers} if headers else {}), tuple(self._inputs))

    def _build_values(self, inputs: list[Mapping[str, Any]], field_: str) -> dict[str, str]:
        named = ((str(each.get("name", "")), each) for each in inputs)
        found = {name: self._value_text(each, name, f"{field_}.{name}") for name, each in named if name}
        return {name: text for name, text in found.items() if text is not None}

    def _build_arguments(self, inputs: list[Mapping[str, Any]]) -> list[str]:
        words: list[str] = []
        for each in inputs:
            hint = str(each.get("name") or each.get("valueHint") or "argument").lstrip("-")
            bare = each.get("type") == "named" and not ({"value", "default", "valueHint"} & each.keys())
            text = None if bare else self._value_text(each, hint, "args")
            if bare or (text is not None and each.get("type") == "named"):
                words.append(escape_literal(str(each.get("name", ""))))
            if text is not None:
                words.append(text)
        return words

    def _value_text(self, given: Mapping[str, Any], name: str, target: str) -> str | None:
        """Return the text for one input of a `server.json`: its fixed value, else the answer, default or a reference.

        None if the input is optional and has neither value nor default.
        """
        if isinstance(given.get("value"), str):
            return self._expand_template(given, given["value"], target)
        return self._add_input(given, name, target)

    def _expand_template(self, given: Mapping[str, Any], text: str, target: str) -> str:
        """Replace each `{variable}` that the document describes in the template `text` by the value of that input."""
        variables = given.get("variables")
        variables = variables if isinstance(variables, Mapping) else {}

        def put(found: re.Match[str]) -> str:
            described = variables.get(found[1])
            if not isinstance(described, Mapping):
                return found[0]
            return self._add_input({"isRequired": True, **described}, found[1], target) or ""

        return _TEMPLATE.sub(put, escape_literal(text))

    def _add_input(self, given: Mapping[str, Any], name: str, target: str) -> str | None:
        default = given.get("default")
        required, secret = bool(given.get("isRequired")), bool(given.get("isSecret"))
        secret_name = f"{self._short}.{re.sub(r'[^A-Za-z0-9_-]+', '-', name)}"
        listed = given.get("choices")
        choices = tuple(str(each) for each in listed) if isinstance(listed, list) else ()
        install_input = InstallInput(
            *(name, target, str(given.get("description", "")), required, secret, default, choices),
            allows_many=bool(given.get("isRepeated")),
            secret_name=secret_name if secret else "",
        )
        self._inputs.append(install_input)
        if name in self._answers and not secret:
            return escape_literal(self._answers[name])
        if default is not None:
            return escape_literal(str(default))
        if not required:
            return None
        return f"${{keyring:{secret_name}}}" if secret else f"${{{re.sub(r'[^A-Za-z0-9_]+', '_', name).upper()}}}"


def _pin_version(identifier: str, version: str, registry: str) -> str:
    if not version or (registry == "oci" and re.search(r"[:@][^/]*$", identifier)):
        return identifier
    return f"{identifier}:{version}" if registry == "oci" else f"{identifier}@{version}"


def _list_objects(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    return list(_iter_mappings(document.get(key)))


def _iter_mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list):
        yield from (each for each in value if isinstance(each, Mapping))


def _server_json_error(file: str, detail: str) -> ConfigError:
    return ConfigError(
        f"{file} does not describe a server that can be added",
        file=file,
        detail=detail,
        hint="add it by its command or its URL instead: toolway add NAME -- COMMAND",
        code="E-CONFIG-SERVER-JSON",
    )
