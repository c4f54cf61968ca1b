"""Parser of one entry of an `mcpServers` map, in the spelling of any MCP host; returns a `Server`."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, cast, get_args

import msgspec

from toolway.config.editing.mistakes import entry_hint
from toolway.config.entry_transport import (
    CORE_TYPES,
    HTTP_TYPES,
    SSE_TYPE,
    STDIO_TYPES,
    URL_KEYS,
    WEBSOCKET_TYPES,
    find_kind,
    find_type,
    parse_settings,
)
from toolway.config.field_reader import (
    CONFIG_KEY_CODE,
    VARIABLE_CODE,
    FieldReader,
    field_error,
    json_type_name,
    quote_plain_word,
    renamed_hint,
    shorten_key,
    unset_variables_error,
)
from toolway.config.foreign_keys import warn_unread_keys
from toolway.config.policy_entry import parse_number, parse_policy
from toolway.config.schema import (
    MAX_ATTEMPTS,
    MAX_TIMEOUT_S,
    ON_BEHALF_GRANTS,
    ConfigIssue,
    EnvPolicy,
    EraSetting,
    Grant,
    HealthCheck,
    Limits,
    OAuth,
    RestartPolicy,
    RetryPolicy,
    Sandbox,
    SandboxGrants,
    Server,
    Timeout,
    Tls,
    ToolSettings,
)
from toolway.config.secret_refs import find_unset_variables, has_secret
from toolway.config.variables import expand_home
from toolway.errors import ConfigError
from toolway.part_api import registry
from toolway.types import Effect

TIMEOUT_KEYS: Final = ("timeout", "timeoutMs")
CALL_KEYS: Final = (
    *("maxRetries", "retryDelayMs", "backoffMultiplier", "idempotent", "trusted", "untrusted", "tools"),
    *("idempotencyMetaKey", "notProcessedCodes", "retry", "rateLimit", "validateArguments", "labels", "redact"),
    "vendorMethods",
)
#: Keys of an allow or deny list: in the entry, as MCP hosts spell them, and inside `tools`.
ALLOW_KEYS: Final = (
    *("allowedTools", "allowed_tools", "enabledTools", "enabled_tools", "includeTools", "include_tools"),
    *("includedTools", "availableTools", "available_tools"),
)
DENY_KEYS: Final = (
    *("deniedTools", "denied_tools", "disabledTools", "disabled_tools", "excludeTools", "exclude_tools"),
    *("excludedTools", "blockedTools", "blocked_tools"),
)
EMPTY_ALLOWS_ALL: Final = ("availableTools", "available_tools")  # Goose: an empty list allows all tools
_INNER_ALLOW_KEYS: Final = ("allow", "allowed", "include", "enabled")
_INNER_DENY_KEYS: Final = ("deny", "denied", "exclude", "disabled", "blocked")
FLOW_LABELS: Final = ("private", "untrusted", "sink")
REDACTED: Final = ("secrets", "email", "card", "iban", "ssn")
CLUSTER_KEYS: Final = ("instances", "nodeLabels")
KNOWN_KEYS: Final = (
    *("command", "args", "env", "envFile", "cwd", *URL_KEYS, "headers", "auth", "tls", "type", "transport"),
    *(*TIMEOUT_KEYS, "startTimeout", "connectTimeout", "maxRestarts", "restart", "enabled", "disabled", "lazy"),
    *(
        "idleTimeout",
        "keepAliveInterval",
        "healthCheckUrl",
        "messageUrl",
        "health",
        "era",
        "shareConnection",
        "env_policy",
        "sandbox",
        "lock",
        "envPolicy",
        "limits",
        *CLUSTER_KEYS,
    ),
    *CALL_KEYS,
    *ALLOW_KEYS,
    *DENY_KEYS,
)

MAX_INSTANCES: Final = 64
MAX_LABELS: Final = 32

_EFFECT_NAMES: Final = tuple(effect.value for effect in Effect)
_LABEL_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=/:-]{0,62}")
_URL_START: Final = re.compile(r"(?:https?|wss?)://", re.IGNORECASE)
_WEBSOCKET_URL_START: Final = re.compile(r"wss?://", re.IGNORECASE)
_MAX_COMMAND_LINE_CHARS: Final = 16 * 1024  # characters of a command line: `shlex.split` takes quadratic time


def parse_entry(value: Mapping[str, Any], variables: Mapping[str, str] | None = None) -> Server:
    """Parse one server entry of a configuration file. Warnings are dropped.

    Raises `ConfigError` if the entry is invalid.

    >>> parse_entry({"command": "npx", "args": ["-y", "server-github"], "timeout": "20s"}).timeout.total
    20.0
    """
    return parse_entry_with_issues(value, os.environ if variables is None else variables)[0]


def parse_inline(text: str) -> Server:
    """Return the server for a URL (`https://…/mcp`) or a command line (`npx -y server-github`).

    Raises `ConfigError` if the command line is empty or too long, or has an unclosed quote.
    """
    return Server(**_parse_inline_fields(text))


def parse_entry_with_issues(value: Any, variables: Mapping[str, str]) -> tuple[Server, list[ConfigIssue]]:
    """Parse one server entry of a configuration file; return the server and the warnings.

    Raises `ConfigError` if the entry is invalid.
    """
    if isinstance(value, str):
        value = _parse_inline_fields(value)
    if not isinstance(value, Mapping):
        raise field_error("a server", 'an object such as {"command": …} or {"url": …}', value)
    fields = FieldReader(value, variables)
    kind = find_kind(value)
    if not kind:
        _require_transport(value)
    server = Server(
        **_parse_transport(fields, kind),
        **_parse_behavior(fields),
        **_parse_call_settings(fields),
        **parse_cluster_settings(fields),
        auth=_parse_oauth(fields),
        tls=_parse_tls(fields),
        timeout=_parse_timeout(fields),
        limits=_parse_limits(fields),
        extras=fields.remaining,
    )
    if fields.remaining:
        warn_unread_keys(fields, (*KNOWN_KEYS, *registry.transport_names(), *registry.entry_keys()))
    for name, key in find_unset_variables(server).items():
        fields.warn_unset(key, name)
    if server.env_file is not None:  # it may set the variables that are not set now
        fields.issues = [
            msgspec.structs.replace(issue, severity="note") if issue.code == VARIABLE_CODE else issue
            for issue in fields.issues
        ]
    return server, fields.issues


def _require_transport(entry: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if an entry has neither a command nor a URL, or has a URL as its command."""
    command = entry.get("command")
    if isinstance(command, str) and _URL_START.match(command):
        hint = 'use "url" instead of "command"'
        raise ConfigError("command is the address of a server", hint=hint, code="E-CONFIG-SERVER")
    if any(entry.get(key) is not None for key in ("command", *URL_KEYS, "type", "transport")):
        return
    if hint := entry_hint(entry):
        raise ConfigError(
            "a server needs a command or a url", detail="found neither", hint=hint, code="E-CONFIG-SERVER"
        )


def find_ignored_keys(servers: Mapping[str, Mapping[str, Any]]) -> list[ConfigIssue]:
    """Return a warning for each ineffective key in these server entries. Skips invalid entries."""
    found = []
    for name, entry in servers.items():
        with suppress(ConfigError):
            issues = parse_entry_with_issues(entry, {})[1]
            found += [msgspec.structs.replace(issue, server=name) for issue in issues if issue.code == CONFIG_KEY_CODE]
    return found


def _parse_inline_fields(text: str) -> dict[str, Any]:
    if _URL_START.match(text.strip()) or find_kind({"url": text.strip()}):
        return {"url": text.strip()}
    if len(text) > _MAX_COMMAND_LINE_CHARS:
        hint = 'use {"command": …, "args": […]}'
        raise ConfigError("command line too long", detail=f"{len(text)} characters", hint=hint, code=CONFIG_KEY_CODE)
    try:
        words = shlex.split(text)
    except ValueError as exc:
        raise ConfigError("invalid command line", detail=str(exc), code=CONFIG_KEY_CODE) from None
    if not words:
        raise ConfigError("empty command line", hint='use "npx -y package" or "https://…/mcp"', code=CONFIG_KEY_CODE)
    return {"command": words[0], "args": words[1:]}


# -- transport, behavior, timeouts, limits ----------------------------------------------------------------------------


def _parse_transport(fields: FieldReader, kind: str) -> dict[str, Any]:
    """Return the `Server` arguments for the transport, such as command, args, url and headers.

    Raises `ConfigError` if they are invalid or do not fit the type of the entry.
    """
    type_ = _parse_type(fields)
    settings, base_url = parse_settings(fields, kind, type_)
    env_file = fields.get_text("envFile")
    command, cwd, url = fields.get_text("command"), fields.get_text("cwd"), _parse_url(fields)
    message_url = fields.get_text("messageUrl")
    if base_url is not None and url not in (None, base_url):
        raise ConfigError(
            "the API has two addresses", detail=f"url and {kind}.server", hint="keep one", code=CONFIG_KEY_CODE
        )
    arguments = {
        "command": command and expand_home(command, fields.variables),
        "args": fields.get_texts("args"),
        "env": fields.get_text_map("env"),
        "cwd": cwd and expand_home(cwd, fields.variables),
        "env_file": env_file and expand_home(env_file, fields.variables),
        "url": base_url or url,
        "sse": type_ == SSE_TYPE or (type_ == "" and message_url is not None),
        "message_url": message_url,
        "headers": fields.get_text_map("headers"),
        "transport_settings": settings,
    }
    if type_ in STDIO_TYPES and command is None:
        raise ConfigError(
            "a stdio server needs a command", hint='add "command", or set "type": "http"', code=CONFIG_KEY_CODE
        )
    if type_ in (*HTTP_TYPES, SSE_TYPE) and url is None:
        type_name = "sse" if type_ == SSE_TYPE else "http"
        raise ConfigError(
            f"an {type_name} server needs a url", hint='add "url", or set "type": "stdio"', code=CONFIG_KEY_CODE
        )
    if settings is None and type_ and type_ not in CORE_TYPES and not (url or "").startswith(f"{type_}://"):
        hint = f'add "{type_}": {{…}}, or "url": "{type_}://…"'
        raise ConfigError(f"a server of type {type_} needs its settings", hint=hint, code=CONFIG_KEY_CODE)
    _check_websocket(type_, url)
    return arguments


def _check_websocket(type_: str, url: str | None) -> None:
    """Raise `ConfigError` if the type and the scheme of the url contradict each other."""
    is_websocket_url = url is not None and _WEBSOCKET_URL_START.match(url) is not None
    if type_ in WEBSOCKET_TYPES and not is_websocket_url:
        raise ConfigError(
            "the url of a websocket server must begin with ws:// or wss://",
            detail="found another scheme" if url is not None else "found no url",
            hint='use "url": "wss://…"',
            code="E-CONFIG-URL",
        )
    if is_websocket_url and type_ not in ("", *WEBSOCKET_TYPES):
        raise ConfigError(
            f"a server of type {type_} cannot have a ws:// or wss:// url",
            hint='set "type": "websocket", or remove it',
            code="E-CONFIG-URL",
        )


def _parse_type(fields: FieldReader) -> str:
    type_text = fields.get_text("type")
    transport_text = fields.get_text("transport")
    type_text = type_text if type_text is not None else transport_text
    if type_text is None:
        return ""
    if type_ := find_type(type_text):
        return type_
    names = ", ".join(registry.transport_names())
    raise ConfigError(
        f"unknown server type {quote_plain_word(type_text)}",
        detail=f"supported types: stdio, http (Streamable HTTP), sse, websocket and {names}",
        code="E-CONFIG-TYPE",
    )


def _parse_url(fields: FieldReader) -> str | None:
    given = {key: text for key in URL_KEYS if (text := fields.get_text(key)) is not None}
    if len(set(given.values())) > 1:
        raise ConfigError(
            "the server has two addresses", detail=" and ".join(given), hint="keep one", code=CONFIG_KEY_CODE
        )
    return next(iter(given.values()), None)


def _parse_behavior(fields: FieldReader) -> dict[str, Any]:
    policies = get_args(EnvPolicy)
    policy = fields.get_choice("env_policy", policies, fields.get_choice("envPolicy", policies, "safe"))
    return {
        "env_policy": cast(EnvPolicy, policy),
        **_parse_sandbox(fields),
        "lock": fields.get_bool("lock", True),
        "era": cast(EraSetting, fields.get_choice("era", get_args(EraSetting), "auto")),
        # Either key can disable a server.
        "enabled": fields.get_bool("enabled", True) and not fields.get_bool("disabled", False),
        "lazy": fields.get_bool("lazy", False),
        "share_connection": fields.get_bool("shareConnection", False),
        "idle_timeout": fields.get_duration("idleTimeout", 0.0, allow_zero=True),
        "restart": _parse_restart(fields),
        "health": _parse_health(fields),
    }


def _parse_sandbox(fields: FieldReader) -> dict[str, Any]:
    """Return the `Server` arguments for `sandbox`, which is a name, or an object with the grants of `strict`."""
    if not isinstance(fields.remaining.get("sandbox"), Mapping):
        return {"sandbox": cast(Sandbox, fields.get_choice("sandbox", get_args(Sandbox), "auto"))}
    block = FieldReader(fields.remaining.pop("sandbox"), fields.variables)
    all_hosts = block.remaining.get("network") is True
    hosts = () if all_hosts and block.remaining.pop("network") else block.get_texts("network")
    limits = (block.get_int("maxMemoryBytes", 0), block.get_int("maxProcesses", 0))
    grants = SandboxGrants(block.get_texts("read"), block.get_texts("write"), hosts, all_hosts, *limits)
    block.reject_unknown("sandbox", "read, write, network, maxMemoryBytes and maxProcesses")
    fields.issues += block.issues
    return {"sandbox": "strict", "grants": grants}


def _parse_restart(fields: FieldReader) -> RestartPolicy:
    flat_keys = _given(fields, maxRestarts="max_restarts")
    policy = RestartPolicy(max_restarts=fields.get_int("maxRestarts", RestartPolicy().max_restarts))
    return parse_policy(fields, "restart", policy, flat_keys)


def _parse_health(fields: FieldReader) -> HealthCheck:
    flat_keys = _given(fields, keepAliveInterval="interval", healthCheckUrl="url")
    interval = fields.get_duration("keepAliveInterval", HealthCheck().interval, allow_zero=True)
    check = HealthCheck(interval=interval, url=fields.get_text("healthCheckUrl"))
    given = fields.remaining.get("health")
    for key in ("interval", "timeout"):
        raw = given.get(key) if isinstance(given, Mapping) else None
        if isinstance(raw, int | float) and 0 < raw < 1000:  # a server cannot pass such a check
            fields.warn(
                f"health.{key} is {raw} milliseconds",
                detail="a number without a unit means milliseconds, as in other clients",
                hint=f'use "{raw}s" for seconds',
            )
    check = parse_policy(fields, "health", check, flat_keys)
    if unset := find_unset_variables(check, "health"):  # it is used while the server runs, not when it starts
        raise unset_variables_error(unset)
    return check


def _given(fields: FieldReader, **flat_keys: str) -> dict[str, str]:
    """Return the `flat_keys` that a server entry has, with the policy field each one sets."""
    return {key: name for key, name in flat_keys.items() if fields.remaining.get(key) is not None}


def _parse_timeout(fields: FieldReader) -> Timeout:
    key = _given_once(fields, TIMEOUT_KEYS) or "timeout"
    raw = fields.remaining.get(key)
    default = Timeout()
    total = fields.get_duration(key, default.total)
    if key == "timeout" and isinstance(raw, int | float) and total < 1:
        fields.warn(
            f"timeout is {raw} milliseconds",
            detail="a number without a unit means milliseconds, as in other clients",
            hint=f'use "{raw}s" for seconds',
        )
    if total > MAX_TIMEOUT_S:
        fields.warn(f"timeout is {total:.0f} s", detail=f"the maximum is {MAX_TIMEOUT_S:.0f} s")
        total = MAX_TIMEOUT_S
    return msgspec.structs.replace(
        default,
        total=total,
        start=fields.get_duration("startTimeout", default.start),
        connect=fields.get_duration("connectTimeout", default.connect),
    )


def _given_once(fields: FieldReader, spellings: tuple[str, ...]) -> str | None:
    """Return which of several spellings of a key a server entry uses, or None.

    Raises `ConfigError` if the entry has the key in two spellings.
    """
    given = [key for key in spellings if fields.remaining.get(key) is not None]
    if len(given) > 1:
        raise ConfigError(
            f"{given[0]} is set twice", detail=f"{given[1]} sets it too", hint="keep one", code=CONFIG_KEY_CODE
        )
    return given[0] if given else None


def _parse_limits(fields: FieldReader) -> Limits:
    given = fields.remaining.pop("limits", None)
    if given is None:
        return Limits()
    if not isinstance(given, Mapping):
        raise ConfigError("limits must be an object", detail=f"found {json_type_name(given)}", code=CONFIG_KEY_CODE)
    inner, default = FieldReader(given, fields.variables), Limits()
    limits = Limits(
        max_concurrent=inner.get_int("maxConcurrent", default.max_concurrent, minimum=1),
        max_queued=inner.get_int("maxQueued", default.max_queued),
        max_message_bytes=inner.get_int("maxMessageBytes", default.max_message_bytes, minimum=1024),
        stderr_bytes=inner.get_int("stderrBytes", default.stderr_bytes),
        compression=inner.get_bool("compression", default.compression),
        max_tools=inner.get_int("maxTools", default.max_tools, minimum=1),
        max_server_requests=inner.get_int("maxServerRequests", default.max_server_requests),
    )
    for key in inner.remaining:
        hint = renamed_hint(f"limits.{key}")
        fields.warn(f"unknown key limits.{key}", detail="it is kept and has no effect", hint=hint)
    if inner.remaining:
        fields.remaining["limits"] = inner.remaining
    return limits


# -- auth -------------------------------------------------------------------------------------------------------------


def _parse_oauth(fields: FieldReader) -> OAuth | None:
    """Return the OAuth settings under `auth`; None if they are missing or have an unknown form.

    An unknown form, as other MCP hosts have, causes a warning. Raises `ConfigError` if a setting is invalid. Messages
    never repeat values: most are secrets.
    """
    given = fields.remaining.get("auth")
    if given == "oauth":
        given = {"type": "oauth"}
    kind = given.get("type") if isinstance(given, Mapping) else None
    if not isinstance(given, Mapping) or kind not in ("oauth", *ON_BEHALF_GRANTS):
        if given is not None:
            hint = 'use "auth": {"type": "oauth", …}, or set a fixed token under `headers`'
            fields.warn("unknown kind of auth", detail="it is kept and has no effect", hint=hint)
        return None
    del fields.remaining["auth"]
    inner = FieldReader({key: value for key, value in given.items() if key != "type"}, fields.variables)
    default = OAuth()
    auth = OAuth(
        grant=_parse_grant(inner, str(kind)),
        issuer=inner.get_text("issuer"),
        client_id=inner.get_text("clientId"),
        client_secret=inner.get_text("clientSecret"),
        private_key=inner.get_text("privateKey"),
        algorithm=inner.get_text("algorithm") or default.algorithm,
        client_metadata_url=inner.get_text("clientMetadataUrl"),
        scopes=_parse_scopes(inner),
        redirect_uri=inner.get_text("redirectUri") or default.redirect_uri,
        idp_client_id=inner.get_text("idpClientId"),
        idp_client_secret=inner.get_text("idpClientSecret"),
        shared_lists=inner.get_bool("sharedLists", False),
    )
    fields.issues += inner.issues
    for key in inner.remaining:
        fields.warn(f"unknown key auth.{key}", detail="it is kept and has no effect")
    if inner.remaining:
        fields.remaining["auth"] = inner.remaining
    return auth


def _parse_grant(inner: FieldReader, kind: str) -> Grant:
    """Return the OAuth grant of an entry: `auth.type` if that exchanges callers' tokens, else `auth.grant`."""
    if kind in ON_BEHALF_GRANTS:
        return cast(Grant, kind)
    choices = tuple(each for each in get_args(Grant) if each not in ON_BEHALF_GRANTS)
    return cast(Grant, inner.get_choice("grant", choices, OAuth().grant))


def _parse_tls(fields: FieldReader) -> Tls | None:
    """Return the TLS settings under `tls` of a server entry; None if there are none.

    Raises `ConfigError` if they are invalid.
    """
    given = fields.remaining.pop("tls", None)
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise field_error("tls", 'an object such as {"caFile": "ca.pem"}', given)
    inner = FieldReader(given, fields.variables)
    paths = {key: inner.get_text(key) for key in ("caFile", "certFile", "keyFile")}
    if any(has_secret(path) for path in paths.values()):
        raise ConfigError("a file path in tls cannot be a secret", hint="use the path", code="E-CONFIG-TLS")
    files = {key: path and expand_home(path, fields.variables) for key, path in paths.items()}
    password = inner.get_text("keyPassword")
    fields.issues.extend(inner.issues)
    if inner.remaining:
        raise ConfigError(
            f"unknown key tls.{shorten_key(next(iter(inner.remaining)))}",
            detail="known keys: caFile, certFile, keyFile and keyPassword",
            hint="fix or remove it: Toolway never connects less safely than an entry says",
            code=CONFIG_KEY_CODE,
        )
    return Tls(files["caFile"], files["certFile"], files["keyFile"], password)


def _parse_scopes(inner: FieldReader) -> tuple[str, ...]:
    """Return the OAuth scopes under `scopes`: a list, or one space-separated text."""
    if isinstance(inner.remaining.get("scopes"), str):
        return tuple((inner.get_text("scopes") or "").split())
    return inner.get_texts("scopes")


# -- calls: retries, effects, tool settings ---------------------------------------------------------------------------


def _parse_call_settings(fields: FieldReader) -> dict[str, Any]:
    """Return the `Server` arguments for calls: retries, idempotency, trust and tool settings."""
    retry = _parse_retry(fields)
    return {
        "retry": retry,
        "rate_limit": fields.get_text("rateLimit"),
        "idempotent": fields.get_bool("idempotent", False),
        "trusted": fields.get_bool("trusted", False),
        "untrusted": fields.get_bool("untrusted", False),
        "labels": _parse_choices(fields, "labels", FLOW_LABELS),
        "redact": _parse_choices(fields, "redact", REDACTED),
        **_parse_tools(fields, retry),
        "validate_arguments": fields.get_bool("validateArguments", True),
        "vendor_methods": fields.get_texts("vendorMethods"),
        "idempotency_meta_key": fields.get_text("idempotencyMetaKey"),
        "not_processed_codes": _parse_not_processed_codes(fields),
    }


def _parse_retry(fields: FieldReader) -> RetryPolicy:
    default = RetryPolicy()
    flat_keys = _given(
        fields, maxRetries="max_attempts", retryDelayMs="initial_backoff", backoffMultiplier="backoff_multiplier"
    )
    attempts = fields.get_int("maxRetries", default.max_attempts - 1, maximum=MAX_ATTEMPTS - 1) + 1
    multiplier = fields.remaining.pop("backoffMultiplier", default.backoff_multiplier)
    policy = msgspec.structs.replace(
        default,
        max_attempts=attempts,
        initial_backoff=fields.get_duration("retryDelayMs", default.initial_backoff, allow_zero=True),
        backoff_multiplier=parse_number("backoffMultiplier", multiplier, 1, 100),
    )
    return parse_policy(fields, "retry", policy, flat_keys)


def _parse_tools(fields: FieldReader, server_retry: RetryPolicy) -> dict[str, Any]:
    """Return the `Server` arguments for tools: settings by name, allow list and deny list."""
    given = fields.remaining.get("tools")
    allowed, denied = parse_tool_lists(fields)
    entries = given.items() if isinstance(given, Mapping) else ()
    settings = {str(name): value for name, value in entries if isinstance(value, Mapping)}
    return {
        "tools": {name: _parse_tool_settings(name, value, fields, server_retry) for name, value in settings.items()},
        "allowed_tools": allowed,
        "denied_tools": denied,
    }


def parse_tool_lists(fields: FieldReader) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Remove the allow and deny list of tools from a server entry and return both; a missing allow list is None.

    The lists are `tools: {"allow": […], "deny": […]}`, or keys of other MCP hosts such as `disabledTools`. A tool with
    `"enabled": false` is on the deny list. Raises `ConfigError` if a list is invalid: a list that is ignored would
    grant access.
    """
    given = fields.remaining.pop("tools", None)
    if not isinstance(given, Mapping | list | tuple | None):
        raise field_error("tools", "an object or a list of names", given)
    entries = {str(name): value for name, value in given.items()} if isinstance(given, Mapping) else {}
    list_keys = (*_INNER_ALLOW_KEYS, *_INNER_DENY_KEYS)
    lists = FieldReader({n: v for n, v in entries.items() if n in list_keys and not isinstance(v, Mapping | bool)}, {})
    allow = _get_name_lists(lists, _INNER_ALLOW_KEYS, "tools.") | _get_name_lists(fields, ALLOW_KEYS)
    deny = _get_name_lists(lists, _INNER_DENY_KEYS, "tools.") | _get_name_lists(fields, DENY_KEYS)
    if isinstance(given, list | tuple):
        if any(isinstance(name, Mapping) for name in given):  # descriptions of tools, as in a manifest
            fields.remaining["tools"] = given
            fields.warn("tools is a list of objects", detail="it has no effect", hint='use "tools.allow"')
        else:  # GitHub Copilot: the tools to offer
            allow |= _get_name_lists(FieldReader({"tools": given}, {}), ("tools",))
    if len({tuple(sorted(names)) for names in allow.values()}) > 1:
        raise ConfigError(
            "the server has two allow lists", detail=" and ".join(allow), hint="keep one", code=CONFIG_KEY_CODE
        )
    disabled = tuple(name for name, value in entries.items() if _is_disabled(name, value, list_keys))
    denied = (*(name for names in deny.values() for name in names), *disabled)
    return next(iter(allow.values()), None), tuple(dict.fromkeys(denied))


def _is_disabled(name: str, value: Any, list_keys: Sequence[str]) -> bool:
    """Return True if `tools` turns a tool off: `"NAME": false` or `"NAME": {"enabled": false}`.

    Raises `ConfigError` if the value is neither an object nor a boolean, unless `name` is in `list_keys`, the keys of
    lists such as `allow`.
    """
    if isinstance(value, Mapping):
        return value.get("enabled") is False
    if isinstance(value, bool):
        return not value
    if name not in list_keys:
        expected = 'an object of settings, true or false; the lists of names are "allow" and "deny"'
        raise field_error(f"tools.{shorten_key(name)}", expected, value)
    return False


def _get_name_lists(fields: FieldReader, keys: Sequence[str], prefix: str = "") -> dict[str, tuple[str, ...]]:
    """Return the lists of tool names or patterns under `keys`, by key.

    Raises `ConfigError` if one is not a list of strings.
    """
    found: dict[str, tuple[str, ...]] = {}
    for key in keys:
        value = fields.remaining.pop(key, None)
        if value is None or (value == [] and key in EMPTY_ALLOWS_ALL):
            continue
        if not isinstance(value, list | tuple) or not all(isinstance(name, str) and name for name in value):
            raise field_error(f"{prefix}{key}", "a list of tool names or patterns", value)
        found[f"{prefix}{key}"] = tuple(value)
    return found


def _parse_tool_settings(
    name: str, value: Mapping[str, Any], outer: FieldReader, server_retry: RetryPolicy
) -> ToolSettings:
    inner = FieldReader(value, outer.variables)
    inner.get_bool("enabled", True)  # false: the tool is on the deny list
    effect = inner.get_choice("effect", _EFFECT_NAMES, "")
    idempotent = inner.get_bool("idempotent", False) if "idempotent" in inner.remaining else None
    timeout = inner.get_duration("timeout", 0.0)
    settings = ToolSettings(
        effect=Effect(effect) if effect else None,
        idempotent=idempotent,
        cache=inner.get_duration("cache", 0.0, allow_zero=True),
        timeout=timeout or None,
        retry=parse_policy(inner, "retry", server_retry) if "retry" in inner.remaining else None,
        rate_limit=inner.get_text("rateLimit"),
        labels=_parse_choices(inner, "labels", FLOW_LABELS),
    )
    if settings.cache and settings.effect is not Effect.READ:
        raise ConfigError(
            f'tools.{name}.cache requires "effect": "read"',
            detail="only the results of read-only tools can be cached",
            hint=f'add "effect": "read" to tools.{name}',
            code=CONFIG_KEY_CODE,
        )
    outer.issues.extend(inner.issues)
    for key in inner.remaining:
        hint = renamed_hint(f"tools.*.{key}")
        outer.warn(f"unknown key tools.{shorten_key(name)}.{key}", detail="it has no effect", hint=hint)
    return settings


def _parse_choices(fields: FieldReader, key: str, options: tuple[str, ...]) -> tuple[str, ...]:
    """Return the list of words under `key`. Raises `ConfigError` if one is not among the known words."""
    given = fields.remaining.pop(key, [])
    if not isinstance(given, list) or not all(each in options for each in given):
        raise field_error(key, f"a list of {', '.join(options)}", given)
    return tuple(dict.fromkeys(given))


def _parse_not_processed_codes(fields: FieldReader) -> tuple[int, ...]:
    given = fields.remaining.pop("notProcessedCodes", [])
    if not isinstance(given, list) or not all(isinstance(c, int) and not isinstance(c, bool) for c in given):
        raise field_error("notProcessedCodes", "a list of HTTP statuses or JSON-RPC codes", given)
    return tuple(given)


# -- cluster ----------------------------------------------------------------------------------------------------------


def parse_cluster_settings(fields: FieldReader) -> dict[str, Any]:
    """Return the `Server` arguments for clusters: number of instances and node labels.

    A gateway without a cluster ignores them. Raises `ConfigError` if a value is invalid.
    """
    instances = fields.get_int("instances", 1, minimum=1)
    if instances > MAX_INSTANCES:
        raise ConfigError(
            f"instances must be at most {MAX_INSTANCES}", detail=f"found {instances}", code=CONFIG_KEY_CODE
        )
    return {"instances": instances, "node_labels": _parse_labels(fields)}


def _parse_labels(fields: FieldReader) -> tuple[str, ...]:
    """Return `nodeLabels` sorted and without duplicates, so equal label sets compare equal.

    Raises `ConfigError` if there are too many labels or one is invalid.
    """
    found = tuple(sorted(set(fields.get_texts("nodeLabels"))))
    bad = sum(not _LABEL_PATTERN.fullmatch(label) for label in found)
    if bad or len(found) > MAX_LABELS:
        raise ConfigError(
            f"nodeLabels must be at most {MAX_LABELS} valid node labels",
            detail=f"{bad} of {len(found)} are invalid",
            hint='use labels of running nodes, for example "nodeLabels": ["gpu", "region=eu"]',
            code=CONFIG_KEY_CODE,
        )
    return found
