"""The page docs/reference/python.md, from the docstrings of the public names."""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any, Final

import msgspec

import toolway

SECTIONS: Final = {
    "Clients": ("Hub", "SyncHub"),
    "Results": ("ToolResult", "ResourceResult", "PromptResult"),
    "Lists and status": (
        "Tool",
        "ToolMatch",
        "Prompt",
        "Resource",
        "ToolRef",
        "ServerStatus",
        "HealthResult",
        "ServerInfo",
    ),
    "Settings": (
        *("Server", "Timeout", "RetryPolicy", "RestartPolicy", "HealthCheck", "Limits", "ToolSettings"),
        "SandboxGrants",
        *("NetworkPolicy", "Effect", "AlertSettings"),
    ),
    "Middleware": ("Middleware", "Call", "CallHandler", "CallResult"),
    "Events": (
        *("Event", "EventSink", "CallFinished", "ServerLog", "StateChanged", "HealthChanged", "ServerPaused"),
        *("CallStarted", "AttemptFinished", "CatalogChanged", "Alert", "AlertResolved", "EventsMissed"),
    ),
    "Stores": ("SqliteIdempotencyStore", "StoreInUse"),
    "Transports": (
        *("Transport", "InProcessServer", "InboundHandler", "Request", "Certainty"),
        *("TransportError", "JSONRPCError", "TransportInfo", "Disconnect"),
    ),
    "Errors": (
        *(
            "ToolwayError",
            "ConfigError",
            "CallError",
            "NotFound",
            "InvalidArguments",
            "ArgumentViolation",
            "AccessDenied",
        ),
        *("ServerUnavailable", "Overloaded", "CallTimeout", "OutcomeUnknown", "ProtocolError", "ToolError"),
        "to_json_rpc",
    ),
}
_HEADINGS: Final = ("Args", "Returns", "Raises", "Example", "Attributes")


def page() -> str:
    """Return the page as Markdown."""
    missing = set(toolway.__all__) - {name for names in SECTIONS.values() for name in names} - {"__version__"}
    assert not missing, f"public names without a section: {sorted(missing)}"
    lines = [
        "# Python reference",
        "",
        "Every public name of `toolway`. All other modules are internal, except `toolway.testing`.",
        "",
    ]
    for section, names in SECTIONS.items():
        lines += [f"## {section}", ""]
        for name in names:
            found = getattr(toolway, name)
            lines += [*(_class_lines if isinstance(found, type) else _function_lines)(name, found), ""]
    return "\n".join(lines).rstrip() + "\n"


def _class_lines(name: str, kind: type) -> Iterator[str]:
    bases = [base.__name__ for base in kind.__bases__ if base.__name__ in toolway.__all__]
    yield f"### `{name}`" + (f" ({', '.join(bases)})" if bases else "")
    yield ""
    yield from _markdown(inspect.getdoc(kind) or "")
    fields = dict(_field_comments(kind))
    has_table = dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)
    if fields and not issubclass(kind, enum.Enum) and has_table:
        yield from ("", "| field | meaning |", "|---|---|")
        for field, text in fields.items():
            yield f"| `{field}` | {text} |"
    for member, value in vars(kind).items():
        if member.startswith("_") or name == "SyncHub" or (fields and member in fields):
            continue
        if isinstance(value, property):
            yield from ("", f"**`{member}`**", "")
            yield from _markdown(inspect.getdoc(value) or "")
        elif inspect.isfunction(value):
            prefix = "await " if inspect.iscoroutinefunction(value) else ""
            yield from ("", f"**`{prefix}{member}({_parameters(value)})`**", "")
            yield from _markdown(inspect.getdoc(value) or "")


def _function_lines(name: str, function: Any) -> Iterator[str]:
    yield from (f"### `{name}({_parameters(function, skip=0)})`", "")
    yield from _markdown(inspect.getdoc(function) or "")


def _parameters(function: Any, skip: int = 1) -> str:
    found = []
    star = False
    for parameter in list(inspect.signature(function).parameters.values())[skip:]:
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            found.append("*")
            star = True
        text = f"*{parameter.name}" if parameter.kind is parameter.VAR_POSITIONAL else parameter.name
        star = star or parameter.kind is parameter.VAR_POSITIONAL
        found.append(text if parameter.default is parameter.empty else f"{text}={parameter.default!r}")
    return ", ".join(found)


def _field_comments(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the fields of a class with the comment behind each."""
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except (OSError, TypeError):
        return
    lines = source.splitlines()
    definition = ast.parse(source).body[0]
    assert isinstance(definition, ast.ClassDef)
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not node.target.id.startswith("_"):
            comments = [line.partition("  # ")[2] for line in lines[node.lineno - 1 : node.end_lineno]]
            text = " ".join(part for part in comments if part).replace("|", "\\|")
            made = re.search(r"default_factory=(\w+)", ast.unparse(node))
            if made and not text and made[1] not in toolway.__all__:
                continue  # for our own use: programs do not set it
            default = f" Default: `{_default(node.value)}`." if node.value is not None else ""
            yield node.target.id, (text + "." if text and not text.endswith(".") else text) + default


def _default(value: ast.expr) -> str:
    """Return the source of a default; of `field(default_factory=Limits)` the value, `Limits()`."""
    return re.sub(r"^(?:msgspec\.)?field\(default_factory=([A-Z]\w*)\)$", r"\1()", ast.unparse(value))


def _markdown(text: str) -> Iterator[str]:
    """Convert the sections of a docstring to Markdown."""
    section = ""
    for line in text.splitlines():
        heading = re.fullmatch(r"(\w+):", line)
        if heading and heading[1] in _HEADINGS:
            if section == "Example":
                yield "```"
            section = heading[1]
            yield from ("", f"*{section}*", "")
            if section == "Example":
                yield "```python"
        elif section == "Example":
            yield line.removeprefix("    ")
        elif section and (found := re.fullmatch(r"    (\w+): (.*)", line)):
            yield f"- `{found[1]}`: {found[2]}"
        elif section:
            yield f"  {line.strip()}" if line.strip() else ""
        elif line.startswith("    "):
            yield line
        else:
            yield line
    if section == "Example":
        yield "```"
