"""Clients with TOML files: Codex, Grok Build, and Mistral Vibe.

Codex and Vibe have keys that name environment variables, instead of expanding variables in values.
"""

from __future__ import annotations

from typing import Any, Final

from toolway.config.clients.models import (
    Client,
    ClientConfigFile,
    ClientPaths,
    Dialect,
    EntryDict,
    TimeoutKey,
    make_config_file,
)
from toolway.config.variables import NO_SYNTAX, TOOLWAY_SYNTAX, TextPiece, VariableRef, parse_variables

_BEARER_PREFIX: Final = "Bearer "


def _codex_files(paths: ClientPaths) -> list[ClientConfigFile]:
    return _toml_files(paths, "codex", "CODEX_HOME")


def _grok_files(paths: ClientPaths) -> list[ClientConfigFile]:
    return _toml_files(paths, "grok", "GROK_HOME")


def _toml_files(paths: ClientPaths, name: str, variable: str) -> list[ClientConfigFile]:
    user = paths.folder_from_env(variable, paths.home / f".{name}") / "config.toml"
    project = paths.find_nearest(f".{name}/config.toml")
    return [
        make_config_file(name, "user", user, "toml", ("mcp_servers",)),
        make_config_file(name, "project", project, "toml", ("mcp_servers",), project.parent.parent),
    ]


def _vibe_files(paths: ClientPaths) -> list[ClientConfigFile]:
    user = paths.folder_from_env("VIBE_HOME", paths.home / ".vibe") / "config.toml"
    project = paths.find_nearest(".vibe/config.toml")
    return [
        make_config_file("mistral-vibe", "user", user, "toml", ("mcp_servers",)),
        make_config_file("mistral-vibe", "project", project, "toml", ("mcp_servers",), project.parent.parent),
    ]


def _codex_to_common(value: EntryDict, unread: EntryDict) -> None:
    """Convert the keys in a Codex entry that name variables to `env` and `headers` with `${VAR}`.

    These are `env_vars`, `env_http_headers`, and `bearer_token_env_var`. `startup_timeout_ms` becomes `startTimeout`.
    """
    names = unread.get("env_vars")
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        value["env"] = {**value.get("env", {}), **{name: f"${{{name}}}" for name in unread.pop("env_vars")}}
    headers = unread.get("env_http_headers")
    if isinstance(headers, dict) and all(isinstance(name, str) for name in headers.values()):
        named = {key: f"${{{name}}}" for key, name in unread.pop("env_http_headers").items()}
        value["headers"] = {**value.get("headers", {}), **named}
    if isinstance(unread.get("bearer_token_env_var"), str):
        token = unread.pop("bearer_token_env_var")
        value["headers"] = {**value.get("headers", {}), "Authorization": f"{_BEARER_PREFIX}${{{token}}}"}
    if isinstance(unread.get("startup_timeout_ms"), int):
        value["startTimeout"] = unread.pop("startup_timeout_ms")


def _codex_from_common(value: EntryDict, written: EntryDict) -> list[tuple[str, str]]:
    unsupported = []
    env = value.get("env")
    if isinstance(env, dict):
        same = [name for name, text in env.items() if _single_variable(text) == name]
        if same:
            written["env_vars"] = same
            _remove_names(value, "env", same)
    headers = value.get("headers")
    for name, text in list(headers.items()) if isinstance(headers, dict) else ():
        token, variable = _bearer_variable(text), _single_variable(text)
        if name.lower() == "authorization" and token is not None:
            written["bearer_token_env_var"] = token
        elif variable is not None:
            written.setdefault("env_http_headers", {})[name] = variable
        else:
            continue
        unsupported += _unsupported_defaults(f"headers.{name}", text)
        _remove_names(value, "headers", [name])
    return unsupported


def _vibe_to_common(value: EntryDict, unread: EntryDict) -> None:
    """Convert a Vibe entry's `api_key_…` keys to a header that contains a variable.

    `api_key_env` names the variable, `api_key_header` names the header, and `api_key_format` is the form of its value.
    """
    name = unread.get("api_key_env")
    if not isinstance(name, str):
        return
    header, form = (
        unread.get("api_key_header", "Authorization"),
        unread.get("api_key_format", f"{_BEARER_PREFIX}{{token}}"),
    )
    if isinstance(header, str) and isinstance(form, str) and header not in value.get("headers", {}):
        for key in ("api_key_env", "api_key_header", "api_key_format"):
            unread.pop(key, None)
        value["headers"] = {**value.get("headers", {}), header: form.replace("{token}", f"${{{name}}}")}


def _vibe_from_common(value: EntryDict, written: EntryDict) -> list[tuple[str, str]]:
    """Write the first header with a variable as `api_key_…` keys, because Vibe only supports one."""
    headers = value.get("headers")
    for name, text in list(headers.items()) if isinstance(headers, dict) else ():
        pieces = parse_variables(text, TOOLWAY_SYNTAX) if isinstance(text, str) else ()
        variables = [piece for piece in pieces if isinstance(piece, VariableRef)]
        if len(variables) == 1 and variables[0].kind == "env":
            form = "".join("{token}" if isinstance(piece, VariableRef) else piece for piece in pieces)
            written |= {"api_key_env": variables[0].name, "api_key_header": name, "api_key_format": form}
            _remove_names(value, "headers", [name])
            return _unsupported_defaults(f"headers.{name}", text)
    return []


def _remove_names(value: EntryDict, key: str, names: list[str]) -> None:
    value[key] = {name: item for name, item in value[key].items() if name not in names}
    if not value[key]:
        del value[key]


def _parse_if_text(text: Any) -> tuple[TextPiece, ...]:
    return parse_variables(text, TOOLWAY_SYNTAX) if isinstance(text, str) else ()


def _single_variable(text: Any) -> str | None:
    """Return NAME if the text is exactly `${NAME}`, with or without a default, or else None."""
    match _parse_if_text(text):
        case (VariableRef("env", name, _),):
            return name
    return None


def _bearer_variable(text: Any) -> str | None:
    match _parse_if_text(text):
        case (str() as before, VariableRef("env", name, _)) if before == _BEARER_PREFIX:
            return name
    return None


def _unsupported_defaults(field: str, text: Any) -> list[tuple[str, str]]:
    defaults = [piece for piece in _parse_if_text(text) if isinstance(piece, VariableRef) and piece.default is not None]
    return [(field, f"it does not support the default of {piece.name}") for piece in defaults]


_SECOND_MS: Final = 1000
TOML_CLIENTS: Final = (
    Client(
        "codex",
        "Codex",
        _codex_files,
        Dialect(
            cwd="cwd",
            urls={"http": "url"},
            headers="http_headers",
            headers_helper="http_headers_helper",
            timeout=TimeoutKey("tool_timeout_sec", _SECOND_MS),
            start_timeout=TimeoutKey("startup_timeout_sec", _SECOND_MS),
            enabled="enabled",
            allow="enabled_tools",
            deny="disabled_tools",
            oauth="oauth",
            oauth_keys={"client_id": "clientId"},
            syntax=NO_SYNTAX,
            to_common=_codex_to_common,
            from_common=_codex_from_common,
        ),
    ),
    Client(
        "grok",
        "Grok Build",
        _grok_files,
        Dialect(
            cwd="cwd",
            urls={"http": "url"},
            timeout=TimeoutKey("tool_timeout_sec", _SECOND_MS),
            start_timeout=TimeoutKey("startup_timeout_sec", _SECOND_MS),
            enabled="enabled",
            writes_enabled=True,
        ),
    ),
    Client(
        "mistral-vibe",
        "Mistral Vibe",
        _vibe_files,
        Dialect(
            name_key="name",
            is_list=True,
            type_key="transport",
            types={"stdio": "stdio", "http": "streamable-http"},
            urls={"http": "url"},
            timeout=TimeoutKey("tool_timeout_sec", _SECOND_MS),
            start_timeout=TimeoutKey("startup_timeout_sec", _SECOND_MS),
            to_common=_vibe_to_common,
            from_common=_vibe_from_common,
        ),
    ),
)
