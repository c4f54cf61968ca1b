"""Tool labels, and the check for whether a caller's calls within half an hour have all three. No I/O.

`private` means that results contain confidential data, `untrusted` that they may contain untrusted content, and `sink`
that a call can send data out. Once a model has read private data, untrusted content may trick it into sending that data
out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

from toolway.config.schema import Server

FlowMode: TypeAlias = Literal["note", "ask", "deny"]
FLOW_MODES: Final = ("note", "ask", "deny")
LABELS: Final = ("private", "untrusted", "sink")
WINDOW_S: Final = 1800.0


class FlowLabels(NamedTuple):
    """One tool's data-flow labels, in the form in which they are kept next to its approval rules."""

    labels: frozenset[str]

    @property
    def is_read(self) -> bool:
        """Return True if calls of this tool cannot send data out."""
        return "sink" not in self.labels


class LabelledCall(NamedTuple):
    """A caller's last call to a tool with a given label: the tool and the time."""

    tool: str
    at: float


Window: TypeAlias = Mapping[str, LabelledCall]  # by label


def labels_of(server: Server | None, name: str, mode: FlowMode) -> frozenset[str]:
    """Return a tool's configured data-flow labels.

    Without a configured label, the tool counts as untrusted in the mode `deny`, and has no labels in other modes.
    """
    found: set[str] = set()
    if server is not None:
        settings = server.tools.get(name)
        found = {*server.labels, *(settings.labels if settings is not None else ())}
        if server.untrusted:
            found.add("untrusted")
    return frozenset(found or ({"untrusted"} if mode == "deny" else ()))


def current(window: Window, now: float) -> dict[str, LabelledCall]:
    """Return the calls in a caller's `window` that are less than half an hour old."""
    return {label: each for label, each in window.items() if now - each.at < WINDOW_S}


def meets(window: Window, labels: Collection[str]) -> bool:
    """Return True if `labels` and the earlier calls in `window` together have all three labels.

    If the window already has all three, only a call that can send data out (`sink`) counts.
    """
    is_complete = all(label in window or label in labels for label in LABELS)
    return is_complete and ("sink" in labels or any(label not in window for label in labels))


#: Words of tool names, by the label that `toolway policy flows suggest` proposes.
_WORDS: Final = {
    "sink": ("send", "post", "create", "publish", "upload", "push", "comment", "reply", "share", "write", "update"),
    "untrusted": ("fetch", "browse", "search", "issue", "issues", "inbox", "email", "emails", "mail", "web", "page"),
    "private": ("file", "files", "email", "emails", "mail", "inbox", "query", "contacts", "calendar", "secret", "repo"),
}
#: Labels of well-known servers, by a word in their name or command.
_KNOWN: Final = {
    "github": ("private", "untrusted"),
    "gitlab": ("private", "untrusted"),
    "gmail": ("private", "untrusted"),
    "slack": ("private", "untrusted"),
    "jira": ("private", "untrusted"),
    "notion": ("private",),
    "filesystem": ("private",),
    "postgres": ("private",),
    "sqlite": ("private",),
    "fetch": ("untrusted", "sink"),
    "playwright": ("untrusted", "sink"),
    "puppeteer": ("untrusted", "sink"),
}


def suggest_labels(server: str, tool: str, annotations: Mapping[str, object], command: str = "") -> list[str]:
    """Suggest flow labels for a tool, based on its name, its server's name, and its hints."""
    words = set(tool.lower().replace("-", "_").replace(".", "_").split("_"))
    found = {label for label, each in _WORDS.items() if words & set(each)}
    for name, labels in _KNOWN.items():
        if name in server.lower() or name in command.lower():
            found |= set(labels)
    if annotations.get("openWorldHint") is True:
        found.add("untrusted")
        if annotations.get("readOnlyHint") is not True:
            found.add("sink")
    return [label for label in LABELS if label in found]
