"""Replaces secret values in text with `***`, in whatever form a program writes them.

Text is first searched as it is. It is then searched without its escapes (of JSON, URLs, HTML, and source code),
repeatedly, because escapes may be escaped again. It is also searched with its lines joined, because programs break
long values into lines. The number of these steps is fixed, and each of them takes linear time.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property
from typing import AnyStr, Final, Generic, Literal, NamedTuple
from urllib.parse import quote, quote_plus, unquote_to_bytes

MASK: Final = "***"
CUT: Final = "…"  # where a string was cut; a part of a secret next to it is masked
MIN_SECRET_CHARS: Final = 6  # characters; shorter values occur in ordinary words
MIN_CUT_CHARS: Final = 4  # characters of a secret that are masked where a text was cut
MIN_LINE_CHARS: Final = 16  # characters of a line of a multi-line secret, such as a key, that is masked by itself
MAX_ENCODED_CHARS: Final = 4096  # characters of a value; the encodings of longer ones, such as files, are not searched
MAX_DECODINGS: Final = 4  # times that escapes are decoded in search of secrets: escapes may be escaped again
MAX_CUTS: Final = 64  # cut marks in a string at which every form is searched for
CUT_MARGIN_CHARS: Final = 4096  # characters that are masked beyond a cut, so no secret there is searched in part
MANY_FORMS: Final = 500  # more forms are found by an index: the time does not grow with their number
MAX_STRIDE: Final = 8
MAX_INDEXED: Final = 200_000  # parts of forms
_MAX_ESCAPE_CHARS: Final = 12  # of one character, such as two escapes of JSON
_CHUNK_CHARS: Final = 65_536  # of a text whose parts are in memory at a time
_MAX_CUT_TRIES: Final = 64  # places at a cut that look like the beginning of a secret; after that one is taken for it
_URL_ESCAPE: Final = re.compile(rb"%[0-9A-Fa-f]{2}")
_CUT_ESCAPE: Final = re.compile(rb"(?:%[0-9A-Fa-f]?|\\(?:u[0-9A-Fa-f]{0,3}|x[0-9A-Fa-f]?)?|&[#0-9A-Za-z]{0,8})\Z")
#: Escapes of JSON strings, of string literals of most languages, and of HTML and XML.
_TEXT_ESCAPE: Final = re.compile(
    rb"""
      \\u[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2} | \\u[0-9A-Fa-f]{4} | \\x[0-9A-Fa-f]{2}
    | \\["'\\/bfnrt] | &\#[0-9]{1,7}; | &\#[xX][0-9A-Fa-f]{1,6}; | &(?:amp|lt|gt|quot|apos);
    """,
    re.VERBOSE,
)
_SHORT_ESCAPES: Final = {
    **{b"\\" + each: each for each in (b'"', b"'", b"\\", b"/")},
    b"\\b": b"\b",
    b"\\f": b"\f",
    b"\\n": b"\n",
    b"\\r": b"\r",
    b"\\t": b"\t",
    b"&amp;": b"&",
    b"&lt;": b"<",
    b"&gt;": b">",
    b"&quot;": b'"',
    b"&apos;": b"'",
}
_SPACE: Final = b" \t\r"
_ASCII_CONTROLS: Final = bytes([*range(0x09), *range(0x0B, 0x20), 0x7F])
#: Characters that are removed from text before it is shown: the same as in `protocol/sanitize.py`.
UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\uf8ff"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\U000f0000-\U0010ffff]"
)

Mask = Callable[[str], str]


def cut_text(text: str, limit: int) -> str:
    """Cut server text to at most `limit` characters plus `…`, before it is masked.

    The `…` shows the masking code where a secret may have been cut in two.
    """
    return text if len(text) <= limit else f"{text[:limit]}{CUT}"


def cut_bytes(data: bytes, limit: int) -> str:
    """Cut `data` to at most `limit` bytes, and return it as text, with `…` if it was cut. See `cut_text`."""
    shown = data[:limit].decode("utf-8", "replace")
    return shown if len(data) <= limit else f"{shown}{CUT}"


def mask_and_cut(text: str, limit: int, mask: Mask, *, keep: Literal["start", "end"] = "start") -> str:
    """Mask secrets, then cut `text` to its first or last `limit` characters, with `…`.

    Masking comes first, because a partial secret would not be found. In very long text, only the part near the cut is
    masked.
    """
    near = limit + CUT_MARGIN_CHARS
    if len(text) > near:
        text = f"{text[:near]}{CUT}" if keep == "start" else f"{CUT}{text[-near:]}"
    shown = mask(text)
    if len(shown) <= limit:
        return shown
    return f"{shown[:limit]}{CUT}" if keep == "start" else f"{CUT}{shown[-limit:]}"


def build_replacer(secrets: Collection[str]) -> Mask:
    """Return a function that replaces secrets with `***`, in all forms in docs/reference/masking.md.

    Longer forms are replaced first, because one value may be a prefix of another.
    """
    return _Replacer(secrets).replace


class _Replacer:
    def __init__(self, secrets: Collection[str]) -> None:
        self._texts = _FormSet({form for secret in secrets for form in _encoded_forms(secret)})

    @cached_property
    def _data(self) -> _FormSet[bytes]:
        """The forms to look for in decoded text. They are computed for the first text with an escape or line break."""
        return _FormSet({each for form in self._texts.forms for each in _decoded_forms(form)})

    def replace(self, text: str) -> str:
        masked = self._replace_forms(text)
        # Characters that are not seen are removed before the text is shown. That must not put a secret together.
        if masked.isascii():  # most strings: much faster than the expression
            printable = masked.encode().translate(None, _ASCII_CONTROLS).decode()
        else:
            printable = UNPRINTABLE.sub("", masked)
        if len(printable) == len(masked):
            return masked
        return masked if (found := self._replace_forms(printable)) == printable else found

    def _replace_forms(self, text: str) -> str:
        if _has_escapes(text):
            text = self._replace_decoded(text)
        present = [re.escape(form) for form in self._texts.find(text)]
        text = re.sub("|".join(present), MASK, text) if present else text
        return self._mask_cuts(text) if CUT in text else text

    def _replace_decoded(self, text: str) -> str:
        """Replace each secret in `text` that is partly or wholly escaped, or broken across lines.

        The text is decoded step by step. Each match in the decoded text is mapped back to its position in `text`.
        """
        source = text.encode("utf-8", "surrogatepass")
        spans: list[tuple[int, int]] = []
        for data, steps in _decoded_views(source):
            plain = data.replace(b"+", b" ")
            found = [each.span() for form in self._data.find(plain) for each in re.finditer(re.escape(form), plain)]
            spans += [_span_before(start, end, steps) for start, end in found]
        if not spans:
            return text
        parts, end = [], 0
        for first, last in sorted(spans):
            if last > end:
                parts += [source[end:first], MASK.encode()] if first >= end else []
                end = last
        return b"".join((*parts, source[end:])).decode("utf-8", "replace")

    # -- next to cuts -------------------------------------------------------------------------------------------------

    def _mask_cuts(self, text: str) -> str:
        """Mask parts of secrets next to each `…`, where a string was cut."""
        parts = text.split(CUT)
        for number, part in enumerate(parts):
            is_crude = number > MAX_CUTS  # to keep many marks from taking more time
            if number < len(parts) - 1:
                part = self._mask_near(part) if is_crude else self._mask_end(part)
            if number > 0:
                part = self._mask_near(part) if is_crude else self._mask_start(part)
            parts[number] = part
        return CUT.join(parts)

    def _mask_end(self, part: str) -> str:
        window = part[-self._window :]
        found = [self._texts.start_of_cut(window)]
        if _has_escapes(window):
            source = window.encode("utf-8", "surrogatepass")
            for data, steps in ((source, list[_Step]()), *_decoded_views(source)):
                start = self._data.start_of_cut(_CUT_ESCAPE.sub(b"", data.replace(b"+", b" ")))
                if start >= 0:
                    found.append(len(source[: _span_before(start, start, steps)[0]].decode("utf-8", "replace")))
        start = min((start for start in found if start >= 0), default=-1)
        return part if start < 0 else f"{part[: len(part) - len(window) + start]}{MASK}"

    def _mask_start(self, part: str) -> str:
        window = part[: self._window]
        end = self._texts.end_of_cut(window)
        if _has_escapes(window):
            source = window.encode("utf-8", "surrogatepass")
            for data, steps in ((source, list[_Step]()), *_decoded_views(source)):
                last = self._data.end_of_cut(data.replace(b"+", b" "))
                if last >= 0:
                    end = max(end, len(source[: _span_before(0, last, steps)[1]].decode("utf-8", "replace")))
        return part if end < 0 else f"{MASK}{part[end:]}"

    def _mask_near(self, part: str) -> str:
        edges = (part[:MIN_CUT_CHARS], part[-MIN_CUT_CHARS:])
        return MASK if any(len(edge) == MIN_CUT_CHARS and edge in self._joined for edge in edges) else part

    @cached_property
    def _window(self) -> int:
        """How many characters next to a cut may belong to a secret, even if escaped once more."""
        return 2 * max(map(len, self._texts.forms), default=0) + _MAX_ESCAPE_CHARS

    @cached_property
    def _joined(self) -> str:
        return "\n".join(self._texts.forms)


def _has_escapes(text: str) -> bool:
    """Return True if text may contain a secret that only shows after decoding."""
    return "%" in text or "\\" in text or "&" in text or "\n" in text


class _FormSet(Generic[AnyStr]):
    """Forms of secrets, longest first, and a search for them in text.

    If there are many forms, they are indexed by their 6-character pieces. Only every eighth piece of the text is
    looked up, because one of each form's first eight pieces is there.
    """

    def __init__(self, forms: Iterable[AnyStr]) -> None:
        self.forms: list[AnyStr] = sorted(forms, key=lambda form: (-len(form), form))
        self._stride = min(MAX_STRIDE, max(1, MAX_INDEXED // len(self.forms))) if len(self.forms) > MANY_FORMS else 0
        self._by_part: dict[AnyStr, list[AnyStr]] = {}
        for offset in range(self._stride):
            for form in self.forms:
                if self._is_indexed(form):
                    self._by_part.setdefault(form[offset : offset + MIN_SECRET_CHARS], []).append(form)

    def _is_indexed(self, form: AnyStr) -> bool:
        return 0 < self._stride <= len(form) - MIN_SECRET_CHARS + 1

    @cached_property
    def _single(self) -> list[AnyStr]:
        return [form for form in self.forms if not self._is_indexed(form)]

    def find(self, text: AnyStr) -> list[AnyStr]:
        """Return the forms that `text` contains, longest first."""
        # A search for each form is much faster than one pattern with all of them, and few strings have any.
        found = {form for form in self._single if form in text}
        size = MIN_SECRET_CHARS
        for begin in range(0, len(text), _CHUNK_CHARS) if self._by_part else ():
            starts = range(begin, min(begin + _CHUNK_CHARS, len(text)), self._stride)
            for part in self._by_part.keys() & {text[start : start + size] for start in starts}:
                found.update(form for form in self._by_part[part] if form in text)
        return sorted(found, key=lambda form: (-len(form), form)) if found else []

    def start_of_cut(self, text: AnyStr) -> int:
        """Return where a cut-off secret (4 or more characters) begins at the end of `text`, or -1 if there is none."""
        starts = (_start_of_cut_form(text, form) for form in self.forms)
        return min((start for start in starts if start >= 0), default=-1)

    def end_of_cut(self, text: AnyStr) -> int:
        """Return where the rest of a cut-off secret (4 or more characters) ends at the start of `text`, or -1."""
        return max((_end_of_cut_form(text, form) for form in self.forms), default=-1)


def _start_of_cut_form(text: AnyStr, form: AnyStr) -> int:
    start = max(0, len(text) - len(form) + 1) - 1
    for _ in range(_MAX_CUT_TRIES):
        start = text.find(form[:MIN_CUT_CHARS], start + 1)
        if start < 0 or form.startswith(text[start:]):
            return start
    return start


def _end_of_cut_form(text: AnyStr, form: AnyStr) -> int:
    end = min(len(text), len(form) - 1 + _MAX_ESCAPE_CHARS) + 1
    for _ in range(_MAX_CUT_TRIES):
        start = text.rfind(form[-MIN_CUT_CHARS:], 0, end - 1)
        end = start + MIN_CUT_CHARS
        skipped = range(min(start, _MAX_ESCAPE_CHARS) + 1)  # the rest of an escape that was cut
        if start < 0 or any(form.endswith(text[skip:end]) for skip in skipped):
            return end if start >= 0 else -1
    return end


# -- decoding ----------------------------------------------------------------------------------------------------------


class _Step(NamedTuple):
    """One decoding step: where escapes are in the decoded text, and how much longer they were."""

    positions: list[int]
    shifts: list[int]  # of the escapes before the one with this index
    removes: bool = False  # nothing is there in the decoded text, as for a line break


def _decoded_views(source: bytes) -> Iterator[tuple[bytes, list[_Step]]]:
    """Yield `source` with joined lines, then with escapes decoded, repeatedly, with the steps that led there."""
    data, steps = source, list[_Step]()
    if b"\n" in data:
        yield _join_lines(data, steps)
    for _ in range(MAX_DECODINGS):
        before = data
        for decode in (_decode_text_escapes, _decode_url_escapes):
            decoded, step = decode(data)
            if step.positions:
                data, steps = decoded, [*steps, step]
                yield data, steps
                if b"\n" in data:
                    yield _join_lines(data, steps)
        if data is before:
            return


def _join_lines(data: bytes, steps: list[_Step]) -> tuple[bytes, list[_Step]]:
    """Return the data without line breaks and the whitespace around them."""
    first, *lines = data.split(b"\n")
    parts = [first.rstrip(_SPACE)]
    positions, shifts = list[int](), [0]
    size, gap = len(parts[0]), len(first) - len(parts[0]) + 1
    for number, line in enumerate(lines, 1):
        text = line.lstrip(_SPACE)
        positions.append(size)
        shifts.append(shifts[-1] + gap + len(line) - len(text))
        parts.append(text.rstrip(_SPACE) if number < len(lines) else text)
        size, gap = size + len(parts[-1]), len(text) - len(parts[-1]) + 1
    return b"".join(parts), [*steps, _Step(positions, shifts, removes=True)]


def _decode_text_escapes(data: bytes) -> tuple[bytes, _Step]:
    if b"\\" not in data and b"&" not in data:
        return data, _Step([], [0])
    return _substitute(data, ((each, _decode_escape(each[0])) for each in _TEXT_ESCAPE.finditer(data)))


def _decode_escape(escape: bytes) -> bytes:
    known = _SHORT_ESCAPES.get(escape)
    if known is not None:
        return known
    if escape.startswith(b"&"):
        digits = escape[2:-1]
        number = int(digits[1:], 16) if digits[:1] in b"xX" else int(digits)
        return chr(number).encode("utf-8", "surrogatepass") if number <= 0x10FFFF else escape
    if escape.startswith(b"\\x"):
        return bytes.fromhex(escape[2:].decode()).decode("latin-1").encode()
    return str(json.loads(b'"' + escape + b'"')).encode("utf-8", "surrogatepass")


def _decode_url_escapes(data: bytes) -> tuple[bytes, _Step]:
    if b"%" not in data:
        return data, _Step([], [0])
    positions = [found.start() - 2 * number for number, found in enumerate(_URL_ESCAPE.finditer(data))]
    if not positions:
        return data, _Step([], [0])
    return unquote_to_bytes(data), _Step(positions, [2 * number for number in range(len(positions) + 1)])


def _substitute(data: bytes, found: Iterable[tuple[re.Match[bytes], bytes]]) -> tuple[bytes, _Step]:
    """Return the data with each match replaced by its paired bytes."""
    parts: list[bytes] = []
    positions, shifts, end, shift = list[int](), [0], 0, 0
    for match, new in found:
        first, last = match.span()
        parts += (data[end:first], new)
        positions.append(first - shift)
        shift += last - first - len(new)
        shifts.append(shift)
        end = last
    return b"".join((*parts, data[end:])), _Step(positions, shifts)


def _span_before(start: int, end: int, steps: list[_Step]) -> tuple[int, int]:
    """Return the span in the original data that corresponds to a span in the decoded data."""
    for step in reversed(steps):
        find = bisect_right if step.removes else bisect_left  # a line break before a secret is not part of it
        start += step.shifts[find(step.positions, start)]
        end += step.shifts[bisect_left(step.positions, end)]
    return start, end


def _decoded_forms(form: str) -> Iterator[bytes]:
    """Yield the forms of a secret after one or more URL decodings, with spaces for `+`."""
    data = form.encode("utf-8", "surrogatepass")
    for _ in range(MAX_DECODINGS):
        if len(data) >= MIN_SECRET_CHARS:
            yield data.replace(b"+", b" ")
        if len(data) == len(data := unquote_to_bytes(data)):
            break


# -- forms of a value --------------------------------------------------------------------------------------------------


def _encoded_forms(value: str) -> Iterator[str]:
    yield value
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    lines = value.splitlines()
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= MIN_LINE_CHARS and not line.startswith("-----"))
        yield "".join(line.strip() for line in lines)  # as it is in a string whose lines are joined
    if len(value) <= MAX_ENCODED_CHARS:
        data = value.encode("utf-8", "surrogatepass")
        yield from _url_forms(data)
        yield from _base64_forms(data)
        if len(value) >= MIN_SECRET_CHARS:
            yield data.hex()
            yield data.hex().upper()


def _url_forms(data: bytes) -> Iterator[str]:
    every_byte = "".join(f"%{byte:02X}" for byte in data)
    common = (quote(data, safe=""), quote(data, safe="/"), quote(data, safe="!'()*"), quote_plus(data))
    for encoded in (*common, every_byte):
        yield encoded
        yield re.sub(r"%[0-9A-F]{2}", lambda escape: escape[0].lower(), encoded)


def _base64_forms(data: bytes) -> Iterator[str]:
    """Yield the base64 forms of a secret, alone and inside longer data, in both alphabets.

    In longer data it may begin at any of three positions. The characters at its ends then depend on its neighbors.
    """
    for position in range(3):
        first = (position * 8 + 5) // 6
        end = (position + len(data)) * 8 // 6
        inner = b64encode(bytes(position) + data).decode()[first:end]
        alone = b64encode(data).decode()
        for form in (inner, alone, alone.rstrip("=")) if position == 0 else (inner,):
            yield form
            yield form.replace("+", "-").replace("/", "_")
