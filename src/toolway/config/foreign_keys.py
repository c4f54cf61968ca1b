"""Warns about config keys that have no effect in Toolway, and says what to do instead.

Keys of other MCP hosts are in a table. Any other key is unknown; the closest known key is suggested. Keys that only
describe a server (`description`, comments) may have no effect and cause no warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from toolway._closest import closest
from toolway.config.field_reader import CONFIG_KEY_CODE, OLD_KEYS, FieldReader, renamed_hint, shorten_key
from toolway.config.schema import ConfigIssue

_MAX_COMPARED_KEYS: Final = 32  # unknown keys per object that are compared with ours: each comparison is slow
_MAX_NAMED_KEYS: Final = 8  # unknown keys that one message names
_NO_EFFECT: Final = "it is kept and has no effect"


class _Advice(NamedTuple):
    reason: str
    hint: str


_NO_CONFIRMATION: Final = _Advice(
    "another host calls these tools without asking the user; Toolway never asks",
    "remove it; to restrict the tools, list them under tools.allow or tools.deny",
)
_FOREIGN_ENTRY_KEYS: Final[Mapping[str, _Advice]] = {
    "alwaysAllow": _NO_CONFIRMATION,
    "autoApprove": _NO_CONFIRMATION,
    "autoAllow": _NO_CONFIRMATION,
    "always_allow": _NO_CONFIRMATION,
    "trust": _Advice(
        "another host asks the user before a call, except for trusted servers; Toolway never asks",
        "remove it; to rely on the server's own annotations, set trusted to true",
    ),
    "headersHelper": _Advice(
        "another host runs this command for headers; Toolway does not",
        'use a command for the header: "headers": {"Authorization": "Bearer ${command:…}"}',
    ),
    "oauth": _Advice("these login settings belong to another host", 'use "auth": {"type": "oauth", …}'),
    "dev": _Advice("VS Code restarts or debugs a server during development", "remove it"),
    "sandboxEnabled": _Advice("another host isolates the server by it", 'set "sandbox": "strict"'),
    "watchPaths": _Advice("another host restarts the server when these files change", "use: toolway restart NAME"),
    "settings": _Advice("these settings are for an extension of an editor", "set the server's settings in env"),
    "authProviderType": _Advice("Google credentials are not supported", 'use "auth": {"type": "oauth", …} or headers'),
    "targetAudience": _Advice("Google credentials are not supported", 'use "auth": {"type": "oauth", …} or headers'),
    "targetServiceAccount": _Advice("Google credentials are not supported", 'use "auth" or headers'),
    "tcp": _Advice("it is the address of a WebSocket server in another host", 'write "url"'),
    "required": _Advice(
        "another host stops if this server cannot be started; Toolway starts all other servers", "remove it"
    ),
    "shell": _Advice("a command is never run through a shell", 'use "command" and "args"'),
    "inheritEnv": _Advice("Toolway has its own key for it", 'set "envPolicy": "inherit"'),
}
_FOREIGN_ROOT_KEYS: Final[Mapping[str, _Advice]] = {
    "inputs": _Advice(
        "VS Code asks the user for these values; Toolway never asks",
        "store each value: toolway secrets set SERVER.NAME, and use ${keyring:SERVER.NAME} in place of ${input:NAME}",
    ),
    "smartRouting": _Advice(
        "another host selects tools by meaning with it",
        'connect clients to /mcp/search; for search by meaning: "toolway": {"search": {"model": "minilm"}}',
    ),
    "globalShortcut": _Advice("it is a setting of a desktop program", "remove it"),
    "defaults": _Advice("each entry has its own settings", 'for the timeout of all servers: "toolway": {"timeout": …}'),
}
_DESCRIPTIVE_KEYS: Final = frozenset(
    {
        *("name", "title", "displayName", "display_name", "label", "description", "comment", "comments", "note"),
        *("notes", "icon", "icons", "version", "author", "homepage", "website", "documentation", "docs", "license"),
        *("repository", "tags", "category", "categories", "source", "gallery", "metadata", "_meta", "id", "schema"),
        *("bundled", "dateAdded", "installed", "vendor"),
    }
)


def warn_unread_keys(fields: FieldReader, known: Iterable[str]) -> None:
    """Add a warning to `fields.issues` for each key in a server entry that has no effect.

    These are the keys that no parser has read. Keys in `known` do not cause warnings here, because their own parsers
    check them. Keys under `extras`, which `toolway clients import` kept for other hosts, are checked too.
    """
    known = tuple(known)
    keys = [key for key in fields.remaining if key not in known and key != "extras" and not is_descriptive_key(key)]
    fields.issues += _key_warnings(keys, _FOREIGN_ENTRY_KEYS, known)
    extras = fields.remaining.get("extras")
    for client, left in islice(extras.items(), _MAX_COMPARED_KEYS) if isinstance(extras, Mapping) else ():
        kept = [str(key) for key in left if _is_effective(str(key))] if isinstance(left, Mapping) else []
        fields.issues += _key_warnings(kept, _FOREIGN_ENTRY_KEYS, (), f" of {shorten_key(str(client))}")


def warn_unread_root_keys(root: Mapping[str, Any], read: Iterable[str]) -> list[ConfigIssue]:
    """Return a warning for each key next to the server map that has no effect.

    Unknown keys share one warning, because the file may be a program's settings file.
    """
    read = tuple(read)
    keys = [key for key in root if key not in read and not is_descriptive_key(key)]
    found = list(_key_warnings([key for key in keys if key in _FOREIGN_ROOT_KEYS], _FOREIGN_ROOT_KEYS, read))
    unknown = [key for key in keys if key not in _FOREIGN_ROOT_KEYS]
    if not unknown:
        return found
    names = ", ".join(repr(shorten_key(key)) for key in unknown[:_MAX_NAMED_KEYS])
    more = f" and {len(unknown) - _MAX_NAMED_KEYS} more" if len(unknown) > _MAX_NAMED_KEYS else ""
    hints = [hint for key in unknown[:_MAX_COMPARED_KEYS] if (hint := _suggestion(key, read))]
    message = f"unknown key{'s' if len(unknown) > 1 else ''} {names}{more} next to the servers"
    hint = hints[0] if hints else 'settings of Toolway are under "toolway"; remove keys that nothing else reads'
    return [*found, ConfigIssue("", message, _NO_EFFECT, hint, CONFIG_KEY_CODE, "warning")]


def _key_warnings(
    keys: list[str], table: Mapping[str, _Advice], known: tuple[str, ...], of: str = ""
) -> Iterator[ConfigIssue]:
    for key in keys[:_MAX_COMPARED_KEYS]:
        if advice := table.get(key):
            message, detail, hint = f"key {key!r}{of} has no effect", advice.reason, advice.hint
        else:
            message, detail = f"unknown key {shorten_key(key)!r}{of}", _NO_EFFECT
            hint = renamed_hint(key) or _suggestion(key, known) or "remove it, or fix its name"
        yield ConfigIssue("", message, detail, hint, CONFIG_KEY_CODE, "warning")
    if len(keys) > _MAX_COMPARED_KEYS:
        message = f"{len(keys) - _MAX_COMPARED_KEYS} more unknown keys{of}"
        yield ConfigIssue("", message, _NO_EFFECT, "", CONFIG_KEY_CODE, "warning")


def _suggestion(key: str, known: tuple[str, ...]) -> str:
    close = closest(key[:80].lower(), (each.lower() for each in known), cutoff=0.8)
    if not close or key in OLD_KEYS:
        return ""
    return f"did you mean {next(each for each in known if each.lower() == close[0])!r}?"


def is_descriptive_key(key: str) -> bool:
    """Return True if a key only describes something, such as a comment."""
    return key in _DESCRIPTIVE_KEYS or key.startswith(("$", "_", "//", "#", "x-"))


def _is_effective(key: str) -> bool:
    """Return True if a key that `clients import` kept in `extras` has an effect in the host that it came from."""
    return key not in ("type", "transport") and not is_descriptive_key(key)
