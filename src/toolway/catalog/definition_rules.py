"""Rules for text in definitions: what users cannot see, disguised commands, phrases for models.

Structural rules (`hold`) found no match in over 1,000 real servers' definitions, so a match is not an accident.
Phrases also occur in honest definitions, above all in those of security tools, so they are only noted.
"""

from __future__ import annotations

import base64
import binascii
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from toolway.types import Json

ENCODED_COMMAND: Final = "encoded command"
LOOK_ALIKE: Final = "look-alike of a tool of another server"
MAX_FINDINGS: Final = 20  # per definition
MAX_STRINGS: Final = 5000  # that are read of one definition
_MAX_EVIDENCE_CHARS: Final = 160

Effect = Literal["hold", "note"]


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """One match of a text rule in a definition: the rule, its effect, and the text that matched."""

    rule: str
    effect: Effect
    path: str  # of the text in the definition, such as `inputSchema.properties.city.description`
    evidence: str  # the matched text, with everything invisible written as an escape

    def __str__(self) -> str:
        return f"{self.path}: {self.rule}: {self.evidence}"


class ToolNames:
    """An index of all servers' tool names.

    It finds text that mentions, and names that resemble, another server's tool.
    """

    def __init__(self) -> None:
        self._names: dict[str, frozenset[str]] = {}
        self._servers: dict[str, set[str]] = {}  # name → servers that have it
        self._alike: dict[str, set[str]] = {}  # skeleton → names

    def replace(self, server: str, names: Iterable[str]) -> None:
        """Set a server's tool names in the index, and remove its earlier names."""
        new = frozenset(names)
        old = self._names.get(server, frozenset())
        for name in old - new:
            servers = self._servers[name]
            servers.discard(server)
            if not servers:
                del self._servers[name]
                self._alike[skeleton(name)].discard(name)
        for name in new - old:
            self._servers.setdefault(name, set()).add(server)
            self._alike.setdefault(skeleton(name), set()).add(name)
        self._names[server] = new

    def is_foreign(self, server: str, name: str) -> bool:
        """Return True if other servers have a tool with this name, and `server` does not."""
        return name in self._servers and name not in self._names.get(server, ())

    def find_alike(self, server: str, name: str) -> str | None:
        """Return another server's tool name that `name` can be mistaken for (list_repos, list_rep0s)."""
        own, plain = self._names.get(server, frozenset()), name.lower()
        alike = self._alike.get(skeleton(name), ())
        return next((each for each in sorted(alike) if each not in own and each.lower() != plain), None)


def inspect_definition(definition: Json, is_foreign: Callable[[str], bool] | None = None) -> tuple[RuleMatch, ...]:
    """Return all matches of the text rules in the definition of a tool, prompt, or template.

    `is_foreign` returns True for the name of a tool that only other servers have.
    """
    findings: list[RuleMatch] = []
    addressed = False
    mentions: list[RuleMatch] = []
    for path, text in _strings(definition):
        found = [*_inspect_text(path, text)]
        addressed = addressed or any(each.effect == "note" for each in found)
        findings += found
        mentions += _mentions(path, text, is_foreign)
        if len(findings) >= MAX_FINDINGS:
            break
    # A definition may mention a tool of another server. Together with a phrase for the model it gives an order.
    effect: Effect = "hold" if addressed else "note"
    findings += [RuleMatch(each.rule, effect, each.path, each.evidence) for each in mentions]
    return tuple(findings[:MAX_FINDINGS])


def _strings(definition: Json) -> Iterator[tuple[str, str]]:
    """Yield (path, text) for every string in a definition, and for every object key that is not ASCII."""
    pending: list[tuple[str, Any]] = [("", definition)]
    count = 0
    while pending and count < MAX_STRINGS:
        path, value = pending.pop()
        if isinstance(value, str):
            count += 1
            yield path, value
        elif isinstance(value, dict):
            for key, each in reversed(value.items()):
                name = f"{path}.{key}" if path else str(key)
                if not str(key).isascii():
                    count += 1
                    yield path or "definition", str(key)
                pending.append((name, each))
        elif isinstance(value, list):
            pending += [(f"{path}[{number}]", each) for number, each in reversed([*enumerate(value)])]


def _inspect_text(path: str, text: str) -> Iterator[RuleMatch]:
    if not text.isascii() or _CONTROL.search(text):
        yield from _invisible(path, text)
    if len(text) >= _MIN_ENCODED_CHARS:
        yield from _encoded_commands(path, text)
    for rule, pattern in _PHRASES:
        match = pattern.search(text)
        if match is not None:
            yield RuleMatch(rule, "note", path, _visible(text[max(0, match.start() - 20) : match.end() + 60]))


# -- characters that users do not see ---------------------------------------------------------------------------------

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_BIDI: Final = frozenset("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_TAGS: Final = range(0xE0000, 0xE0080)
_VARIATION_SELECTORS: Final = range(0xE0100, 0xE01F0)
_FLAG: Final = re.compile("\U0001f3f4[\U000e0061-\U000e007a\U000e0030-\U000e0039]{2,6}\U000e007f")
_VISIBLE_FORMAT: Final = frozenset("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u08e2")  # signs of Arabic, Syriac
_BLANK_LETTERS: Final = frozenset("\u115f\u1160\u3164\uffa0\u2800")  # letters and symbols without a glyph


def _invisible(path: str, text: str) -> Iterator[RuleMatch]:
    text = _FLAG.sub("", text)
    kinds: dict[str, int] = {}
    for place, character in enumerate(text):
        kind = _invisible_kind(text, place, character)
        if kind is not None:
            kinds.setdefault(kind, place)
    for kind, place in kinds.items():
        tags = "".join(chr(ord(each) - 0xE0000) for each in text if ord(each) in _TAGS)
        evidence = f"reads {tags!r}" if kind == "tag characters" else _visible(text[max(0, place - 20) : place + 40])
        yield RuleMatch(kind, "hold", path, evidence[:_MAX_EVIDENCE_CHARS])


def _invisible_kind(text: str, place: int, character: str) -> str | None:
    if character in "\t\n\r" or (character.isascii() and character.isprintable()):
        return None
    code = ord(character)
    if code in _TAGS:
        return "tag characters"
    if character in _BIDI:
        return "characters that change the direction of text"
    category = unicodedata.category(character)
    if category == "Co":
        return "private-use characters"
    if category == "Cc":
        return "control characters"
    if code in _VARIATION_SELECTORS or character in _BLANK_LETTERS:
        return "invisible characters"
    if category == "Cf" and character not in _VISIBLE_FORMAT and not _joins(text, place, character):
        return "invisible characters"
    return None


def _joins(text: str, place: int, character: str) -> bool:
    """Return True if an invisible joiner is legitimate: between emoji, or in a script that uses joiners."""
    if character not in "\u200c\u200d" or not 0 < place < len(text) - 1:
        return False
    before, after = text[place - 1], text[place + 1]
    if character == "\u200d" and unicodedata.category(after) == "So":
        return unicodedata.category(before) in {"So", "Sk", "Mn"}
    return all(unicodedata.category(each)[0] in "LM" and ord(each) > 0x5FF for each in (before, after))


def _visible(text: str) -> str:
    """Return text for display as evidence: invisible characters escaped, cut if long."""
    shown = "".join(c if c == " " or (c.isprintable() and c not in _BLANK_LETTERS) else ascii(c)[1:-1] for c in text)
    return shown[:_MAX_EVIDENCE_CHARS]


# -- commands in disguise ----------------------------------------------------------------------------------------------

_MIN_ENCODED_CHARS: Final = 20
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]{20,4096}={0,2}")
_HEX: Final = re.compile(r"(?:0x)?((?:[0-9a-fA-F]{2}){12,2048})")
_ESCAPED: Final = re.compile(r"(?:\\x[0-9a-fA-F]{2}){8,}")
_COMMAND: Final = re.compile(
    r"\b(?:curl|wget|bash|zsh|powershell|netcat|nc|chmod|scp|ssh|eval|exec|sudo|sh -c|rm -rf?|python3? -c|node -e)\b"
    r"|/bin/(?:ba|z|da)?sh\b|/etc/(?:passwd|shadow)\b|\.ssh/|https?://",
    re.IGNORECASE,
)


def _encoded_commands(path: str, text: str) -> Iterator[RuleMatch]:
    decoders: tuple[tuple[re.Pattern[str], Callable[[str], bytes | None]], ...] = (
        (_BASE64, _from_base64),
        (_HEX, _from_hex),
        (_ESCAPED, _from_hex),
    )
    for pattern, decode in decoders:
        for match in pattern.finditer(text):
            data = decode(match.group(0))
            decoded = _as_text(data) if data is not None else None
            if decoded is not None and _COMMAND.search(decoded):
                yield RuleMatch(ENCODED_COMMAND, "hold", path, f"decodes to {_visible(decoded)}"[:_MAX_EVIDENCE_CHARS])
                return


def _from_base64(text: str) -> bytes | None:
    body = text.rstrip("=").replace("-", "+").replace("_", "/")
    body = body[: len(body) - 1] if len(body) % 4 == 1 else body
    try:
        return base64.b64decode(body + "=" * (-len(body) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


def _from_hex(text: str) -> bytes | None:
    try:
        return bytes.fromhex(text.replace("\\x", "").removeprefix("0x"))
    except ValueError:
        return None


def _as_text(data: bytes) -> str | None:
    """Return these bytes decoded as UTF-8 text, or None if they are not UTF-8, or have unprintable characters."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if all(each.isprintable() or each in "\t\r\n" for each in text) else None


# -- names -------------------------------------------------------------------------------------------------------------


def skeleton(name: str) -> str:
    """Return a form of a name that is equal for names users can confuse, such as `rn` and `m`."""
    name = name.replace("I", "l").lower().replace("rn", "m").replace("vv", "w")
    return name.translate(_LOOK_ALIKES)


_LOOK_ALIKES: Final = str.maketrans({"0": "o", "1": "l", "5": "s"})

_MIN_MENTION_CHARS: Final = 6
_WORD: Final = re.compile(r"[A-Za-z0-9_.-]{6,}")


def _mentions(path: str, text: str, is_foreign: Callable[[str], bool] | None) -> Iterator[RuleMatch]:
    if is_foreign is None or path == "name":
        return
    for match in _WORD.finditer(text):
        word = match.group(0).strip(".-")
        # A word without separators, such as "search", is more often a word than a name.
        if any(each in word for each in "_.-") and len(word) >= _MIN_MENTION_CHARS and is_foreign(word):
            yield RuleMatch("names a tool of another server", "note", path, word)
            return


# -- phrases that address a model --------------------------------------------------------------------------------------

_PHRASES: Final = tuple(
    (rule, re.compile("|".join(patterns), re.IGNORECASE))
    for rule, patterns in {
        "overrides instructions": [
            r"\b(?:ignore|disregard|forget|override)\b.{0,30}\b(?:previous|prior|above|all|system)\b.{0,20}(?:instruc|prompt)",
        ],
        "asks for secrecy": [
            r"\b(?:do not|don't|never) (?:tell|inform|mention|reveal|show)\b.{0,30}\b(?:user|anyone|human|this)\b",
            r"\bwithout (?:telling|informing|mentioning|notifying)\b",
        ],
        "names a secret file": [
            r"/?\.(?:ssh|aws|netrc|gnupg|kube|docker)/",
            r"\bid_(?:rsa|ed25519)\b",
            r"/etc/(?:passwd|shadow)\b",
            r"\bmcp\.json\b",
        ],
        "sends data elsewhere": [
            r"\b(?:send|post|upload|forward|exfiltrate|transmit)\b.{0,60}(?:https?://|webhook|\bto the (?:url|server))",
        ],
        "orders the model": [
            r"\b(?:you|the (?:model|assistant|agent|llm|ai)) (?:must|have to|should always|are required to)\b",
            r"\b(?:always|first) (?:call|use|invoke|run|choose|prefer) (?:this|the) (?:tool|function)\b",
            r"\bbefore (?:using|calling) (?:any|this|other)\b.{0,30}\btools?\b",
            r"<(?:important|system|instructions?)>",
        ],
    }.items()
)
