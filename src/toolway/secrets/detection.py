"""Masking of secrets that this process has used, and detection of likely secrets.

A secret is resolved late, for the one server that refers to it. But the server may repeat it, and that text appears in
many outputs. So the code that resolves a secret adds it here, and the code that shows text masks it here. The secrets
are in memory only.

Detection by name or format is for suggestions and warnings, never for security decisions.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from itertools import pairwise
from typing import AnyStr, Final
from urllib.parse import parse_qsl, quote, quote_plus, unquote_to_bytes, urlsplit

from toolway._lazy import compile_pattern

# -- masking of secrets in use -----------------------------------------------------------------------------------------

MASK: Final = "***"
MIN_SECRET_CHARS: Final = 6  # characters; shorter values occur in ordinary words
MIN_LINE_CHARS: Final = 16  # characters of a line of a multi-line secret, such as a key, that is masked by itself
MAX_SECRETS: Final = 4096  # values; the oldest is dropped: a secret command may return a new value each time
MAX_ENCODED_CHARS: Final = 4096  # characters of a value; the encodings of longer ones, such as files, are not searched
MAX_DECODINGS: Final = 4  # times that a text is URL-decoded in search of secrets: escapes may be escaped again
_ESCAPE: Final = compile_pattern(r"%[0-9A-Fa-f]{2}")
_ESCAPE_BYTES: Final = compile_pattern(rb"%[0-9A-Fa-f]{2}")
_CUT_ESCAPE: Final = compile_pattern(rb"%[0-9A-Fa-f]?\Z")
#: Characters that are removed from text before it is shown: the same as in `protocol/sanitize.py`.
UNPRINTABLE: Final = compile_pattern(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\uf8ff"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\U000f0000-\U0010ffff]"
)


class SecretMasker:
    """Set of secret values, with a function that replaces each of them by `***` in a text.

    It keeps at most `max_secrets` values and drops the oldest first. Values under 6 characters are not kept.
    """

    def __init__(self, max_secrets: int = MAX_SECRETS) -> None:
        self._max_secrets = max_secrets
        self._values: dict[str, None] = {}
        self._replace: Callable[[str], str] | None = None

    def add(self, value: str) -> None:
        if value in self._values or len(value) < MIN_SECRET_CHARS:
            return
        self._values[value] = None
        while len(self._values) > self._max_secrets:
            self._values.pop(next(iter(self._values)))
        self._replace = None

    def mask(self, text: str) -> str:
        if not self._values:
            return text
        if self._replace is None:
            self._replace = build_replacer(self._values)
        return self._replace(text)


def build_replacer(secrets: Collection[str]) -> Callable[[str], str]:
    """Return a function that replaces each secret by `***`: plain, JSON-escaped, URL-encoded or in base64.

    Longer forms are replaced first, because one value may be a prefix of another.
    """
    found = {form for secret in secrets for form in _encoded_forms(secret)}
    forms = sorted(found, key=lambda form: (-len(form), form))
    decoded_forms: list[bytes] = []  # computed for the first text with an escape

    def replace(text: str) -> str:
        masked = replace_forms(text)
        if UNPRINTABLE.search(masked) is None:
            return masked
        # They are removed before the text is shown. That must not put a secret together.
        printable = UNPRINTABLE.sub("", masked)
        return masked if (found := replace_forms(printable)) == printable else found

    def replace_forms(text: str) -> str:
        if "%" in text and _ESCAPE.search(text) is not None:
            if not decoded_forms:
                decoded_forms.extend({each for form in forms for each in _decoded_forms(form)})
            text = _replace_url_encoded(text, decoded_forms)
        # A search for each form is much faster than one pattern with all of them, and few texts have any.
        present = [re.escape(form) for form in forms if form in text]
        text = re.sub("|".join(present), MASK, text) if present else text
        if not text.endswith("…"):
            return text
        cut = text[:-1]  # long texts are cut before they are masked
        starts = [start for form in forms if (start := _start_of_cut_form(cut, form)) >= 0]
        return f"{cut[: min(starts)]}{MASK}…" if starts else text

    return replace


def _replace_url_encoded(text: str, forms: Collection[bytes]) -> str:
    """Return `text` with `***` instead of each secret of `forms` that is partly or wholly URL-encoded, even repeatedly.

    The text is URL-decoded step by step. Each match in the decoded text is mapped back to its position in `text`.
    """
    is_cut = text.endswith("…")
    source = data = (text[:-1] if is_cut else text).encode("utf-8", "surrogatepass")
    escapes: list[list[int]] = []  # for each decoding, the positions of its escapes in the decoded data
    spans: list[tuple[int, int]] = []
    for _ in range(MAX_DECODINGS):
        positions = [found.start() - 2 * number for number, found in enumerate(_ESCAPE_BYTES.finditer(data))]
        if not positions:
            break
        escapes.append(positions)
        data = unquote_to_bytes(data)
        plain = data.replace(b"+", b" ")
        found = [each.span() for form in forms if form in plain for each in re.finditer(re.escape(form), plain)]
        if is_cut:
            cut = _CUT_ESCAPE.sub(b"", plain)
            starts = [start for form in forms if (start := _start_of_cut_form(cut, form)) >= 0]
            found += [(start, len(plain)) for start in starts]
        spans += [(_position_before(start, escapes), _position_before(end, escapes)) for start, end in found]
    if not spans:
        return text
    parts, end = [], 0
    for first, last in sorted(spans):
        if last > end:
            parts += [source[end:first], MASK.encode()] if first >= end else []
            end = last
    masked = b"".join((*parts, source[end:])).decode("utf-8", "surrogatepass")
    return f"{masked}…" if is_cut else masked


def _position_before(position: int, escapes: list[list[int]]) -> int:
    """Return the position in the original data that corresponds to `position` in the URL-decoded data.

    The data was decoded repeatedly. `escapes` has, for each decoding, the positions of its escapes (`%41`), which are
    two bytes longer than the bytes they decode to.
    """
    for positions in reversed(escapes):
        position += 2 * bisect_left(positions, position)
    return position


def _decoded_forms(form: str) -> Iterator[bytes]:
    """Yield the secret `form` as a text contains it after one, two or more URL decodings, with spaces for `+`."""
    data = form.encode("utf-8", "surrogatepass")
    for _ in range(MAX_DECODINGS):
        if len(data) >= MIN_SECRET_CHARS:
            yield data.replace(b"+", b" ")
        if len(data) == len(data := unquote_to_bytes(data)):
            break


def _start_of_cut_form(text: AnyStr, form: AnyStr) -> int:
    """Return the index at which a cut-off secret begins at the end of `text`; -1 if there is none.

    The text was cut inside the secret `form`: it ends with at least the first 6 characters of `form`.
    """
    start = text.find(form[:MIN_SECRET_CHARS], max(0, len(text) - len(form) + 1))
    return start if start >= 0 and form.startswith(text[start:]) else -1


def _encoded_forms(value: str) -> Iterator[str]:
    yield value
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    lines = value.splitlines()
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= MIN_LINE_CHARS and not line.startswith("-----"))
    if len(value) <= MAX_ENCODED_CHARS:
        yield from _url_forms(value)
        yield from _base64_forms(value.encode("utf-8", "surrogatepass"))


def _url_forms(value: str) -> Iterator[str]:
    data = value.encode("utf-8", "surrogatepass")
    every_byte = "".join(f"%{byte:02X}" for byte in data)
    common = (quote(data, safe=""), quote(data, safe="/"), quote(data, safe="!'()*"), quote_plus(data))
    for encoded in (*common, every_byte):
        yield encoded
        yield re.sub(r"%[0-9A-F]{2}", lambda escape: escape[0].lower(), encoded)


def _base64_forms(data: bytes) -> Iterator[str]:
    """Yield the base64 text of the secret `data`, encoded alone and as a part of longer data, in both alphabets.

    In longer data it may begin at any of three positions. The characters at its ends then depend on its neighbours.
    """
    for position in range(3):
        first = (position * 8 + 5) // 6
        end = (position + len(data)) * 8 // 6
        inner = b64encode(bytes(position) + data).decode()[first:end]
        for form in (inner, b64encode(data).decode()) if position == 0 else (inner,):
            yield form
            yield form.replace("+", "-").replace("/", "_")


#: Common values of settings. Masking them would hide ordinary words in all output.
_HARMLESS_WORDS: Final = frozenset(
    {
        *("true", "false", "yes", "no", "on", "off", "enabled", "disabled", "none", "null", "auto", "default"),
        *("always", "never", "trace", "debug", "verbose", "info", "notice", "warn", "warning", "error", "critical"),
        *("fatal", "silent", "quiet", "production", "prod", "development", "dev", "staging", "testing", "test"),
        *("local", "localhost", "sandbox", "preview", "stdio", "http", "https", "streamable-http", "sse"),
        *("json", "text", "plain", "utf8", "utf-8", "ascii", "readonly", "read-only", "readwrite", "read-write"),
    }
)
_HARMLESS_FORMAT: Final = compile_pattern(
    r"""
      [0-9.,:-]{1,5}                            # a small number
    | [a-z]{2,3}_[A-Z]{2}(?:\.[A-Za-z0-9-]+)?   # a locale
    | ~?(?:/[\w.@-]{0,64})+                     # an absolute path
    | [a-z]+://[\w.-]+(?::[0-9]{1,5})?/?        # a URL with scheme, host and port only
    """,
    re.VERBOSE,
)


def is_harmless_value(name: str, value: str) -> bool:
    """Return True if the value of an environment variable is no secret: it is shown, and not masked in texts.

    These are common words such as `production`, small numbers, locales, absolute paths, and URLs without user, path and
    query; but not if the name of the variable says that it is a secret.

    >>> [is_harmless_value("MODE", each) for each in ("production", "https://api.example", "correct-horse", "/srv")]
    [True, True, False, True]
    >>> is_harmless_value("PASSWORD", "production")
    False
    """
    harmless = value.lower() in _HARMLESS_WORDS or _HARMLESS_FORMAT.fullmatch(value) is not None
    return harmless and not is_secret_name(name)


_masker = SecretMasker()
remember_secret = _masker.add
mask_secrets = _masker.mask


# -- likely secrets, by name or format ---------------------------------------------------------------------------------

_MIN_TOKEN_CHARS: Final = 8  # characters; tokens are not shorter
_MIN_PASSWORD_CHARS: Final = 4
_PASSWORD_NAME: Final = compile_pattern(r"(passwo?r?d|passphrase|pwd)$", re.IGNORECASE)
_SECRET_SUFFIXES: Final = ("password", "passwd", "secret", "token", "apikey")  # for joined words such as PGPASSWORD
_SECRET_WORDS: Final = frozenset(
    {
        *("apikey", "auth", "authorization", "bearer", "cookie", "credential", "credentials", "jwt", "key"),
        *("pass", "passphrase", "passwd", "password", "pat", "pwd", "secret", "secrets", "token"),
    }
)
# `MAX_TOKENS`, `KEY_FILE` and the like describe a secret or something else, but are not secrets.
_NON_SECRET_WORDS: Final = frozenset(
    {
        *("alias", "author", "count", "dir", "endpoint", "expiry", "file", "folder", "id", "limit", "max", "min"),
        *("mode", "name", "path", "public", "scope", "scopes", "size", "sock", "timeout", "ttl", "type", "uri", "url"),
    }
)
_NAME_WORD: Final = compile_pattern(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
TOKEN_FORMATS: Final = compile_pattern(
    r"""(?:
      gh[opsur]_\w{20,} | github_pat_\w{20,} | glpat-[\w-]{16,}
    | sk-[\w-]{16,} | (?:sk|rk|pk)_(?:live|test)_\w{16,} | xox[abeoprs]-[\w-]{10,} | xapp-[\w-]{10,}
    | A(?:KIA|SIA)[A-Z0-9]{16} | AIza[\w-]{30,} | ya29\.[\w-]{20,}
    | hf_\w{20,} | npm_\w{30,} | pypi-[\w-]{40,} | SG\.[\w-]{16,}\.[\w-]{16,} | dop_v1_\w{32,} | shpat_\w{20,}
    | lin_api_\w{20,} | ntn_\w{20,} | secret_\w{20,} | tvly-[\w-]{16,} | fig[du]_[\w-]{20,} | r8_\w{20,}
    | eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*
    )""",
    re.VERBOSE,
)
_AUTH_SCHEME: Final = compile_pattern(r"(?:bearer|basic|token|apikey)\s+(\S+)", re.IGNORECASE)
_PEM_MARKER: Final = "PRIVATE KEY-----"
_PLACEHOLDER: Final = compile_pattern(r"\$\{[^}]*\}|\$\w+|%\w+%|\{env:\w+\}|<[^<>]*>|\*+|\.\.\.|…")


def looks_like_secret(name: str, value: str) -> bool:
    """Return True if the value of a setting called `name` seems to be a plain-text secret.

    >>> looks_like_secret("GITHUB_TOKEN", "ghp_" + 36 * "x"), looks_like_secret("GITHUB_TOKEN", "${GITHUB_TOKEN}")
    (True, False)
    """
    scheme = _AUTH_SCHEME.fullmatch(value.strip())
    bare = scheme[1] if scheme else value.strip()
    if "://" in bare:
        return bool(secrets_in_url(bare))
    if not bare or _PLACEHOLDER.search(bare):
        return False
    if _PEM_MARKER in bare or TOKEN_FORMATS.fullmatch(bare):
        return True
    return (bool(scheme) or is_secret_name(name)) and _is_plausible_secret(name, bare)


def is_secret_name(name: str) -> bool:
    """Return True if a setting called `name` usually holds a secret.

    >>> [is_secret_name(name) for name in ("OPENAI_API_KEY", "maxTokens", "--api-key", "KEYBOARD")]
    [True, False, True, False]
    """
    words = [word.lower() for word in _NAME_WORD.findall(name)]
    joined = {a + b for a, b in pairwise(words)}
    if not words or words[-1] in _NON_SECRET_WORDS:
        return False
    return bool(_SECRET_WORDS & {*words, *joined}) or any(word.endswith(_SECRET_SUFFIXES) for word in words)


def secrets_in_url(url: str) -> list[str]:
    """Return the likely secrets in a URL: a password, or a token in the query."""
    try:
        parts = urlsplit(url)
        found = [parts.password] if parts.password else []
        query = parse_qsl(parts.query)
    except ValueError:
        return []
    found += [value for name, value in query if looks_like_secret(name, value)]
    return [each for each in found if not _PLACEHOLDER.search(each)]


def _is_plausible_secret(name: str, value: str) -> bool:
    """Return True if `value` is long enough for a secret, and no number, phrase or file path."""
    min_chars = _MIN_PASSWORD_CHARS if _PASSWORD_NAME.search(name) else _MIN_TOKEN_CHARS
    if len(value) < min_chars or value.isdigit() or any(c.isspace() for c in value):
        return False
    return not re.match(r"[~./\\]|[A-Za-z]:[\\/]", value)
