"""Attacks on the mask: forms of a secret that it does not find, cuts inside a secret, and strings that make it slow."""

from __future__ import annotations

import html
import json
import re
import sys
import textwrap
from base64 import b64encode, encodebytes, urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from random import Random
from urllib.parse import quote, quote_plus

import pytest
from typer.testing import CliRunner

from tests.parts.identity.exchange_lab import ExchangeIssuer, Target, on_behalf
from toolway.cli.app import app
from toolway.config.masking import build_masker
from toolway.config.schema import Server
from toolway.hub.result_redaction import ResultRedactor
from toolway.protocol import sanitize
from toolway.secrets import replacer, server_secrets
from toolway.secrets.replacer import CUT, CUT_MARGIN_CHARS, MASK, build_replacer, mask_and_cut
from toolway.secrets.server_secrets import ServerSecrets, secrets_of
from toolway.types import ToolResult

SECRETS = ["sk/Tq7v+Lm2Xk9Zp4Rw8/zz", 'a"b\\c/d é&=+/', "päss/wörd", "six/66", "-" + "Zk3/x+" * 30]

#: The forms of docs/reference/masking.md.
FORMS: dict[str, Callable[[str], str]] = {
    "plain": lambda value: value,
    "json": json.dumps,
    "json, not ASCII": lambda value: json.dumps(value, ensure_ascii=False),
    "json, \\/": lambda value: json.dumps(value).replace("/", "\\/"),
    "json, \\u002f": lambda value: json.dumps(value).replace("/", "\\u002f"),
    "json, \\u002F": lambda value: json.dumps(value).replace("/", "\\u002F"),
    "json, every character": lambda value: "".join(f"\\u{ord(char):04x}" for char in value),
    "json in json": lambda value: json.dumps(json.dumps(value).replace("/", "\\/")),
    "literal": lambda value: "".join(f"\\x{ord(char):02x}" for char in value),
    "html": html.escape,
    "html, numbers": lambda value: "".join(f"&#{ord(char)};" for char in value),
    "html, hex numbers": lambda value: "".join(f"&#x{ord(char):X};" for char in value),
    "url": lambda value: quote(value, safe=""),
    "url, lower": lambda value: re.sub("%..", lambda found: found[0].lower(), quote(value, safe="")),
    "url, form": quote_plus,
    "url, every byte": lambda value: "".join(f"%{byte:02x}" for byte in value.encode()),
    "url in url": lambda value: quote(quote(value)),
    "json in url": lambda value: quote(json.dumps(value).replace("/", "\\/")),
    "hex": lambda value: value.encode().hex(),
    "HEX": lambda value: value.encode().hex().upper(),
    "base64": lambda value: b64encode(value.encode()).decode(),
    "base64url": lambda value: urlsafe_b64encode(value.encode()).decode().rstrip("="),
    "base64 in json, \\/": lambda value: json.dumps(b64encode(value.encode()).decode()).replace("/", "\\/"),
    "base64, lines": lambda value: encodebytes(value.encode()).decode(),
    "base64, short lines": lambda value: "\n".join(textwrap.wrap(b64encode(value.encode()).decode(), 5)),
    "base64, CRLF and indented": lambda value: "\r\n  ".join(textwrap.wrap(b64encode(value.encode()).decode(), 6)),
    "base64, lines in json": lambda value: json.dumps("\n".join(textwrap.wrap(b64encode(value.encode()).decode(), 7))),
    "base64, lines in url": lambda value: quote("\r\n".join(textwrap.wrap(b64encode(value.encode()).decode(), 7))),
    "lines": lambda value: "\n".join(textwrap.wrap(value, 5)),
}

# A line break in place of a space is not part of the secret.
SHOWN = [(form, value) for form in FORMS for value in SECRETS if form != "lines" or " " not in value]


@pytest.mark.attack("A2-W10")
@pytest.mark.parametrize(("form", "value"), SHOWN)
def test_secret_is_masked_in_every_form(form: str, value: str) -> None:
    mask = build_masker([Server(url="https://x.example", headers={"X-Key": value})])
    shown = mask(f"cannot log in: {FORMS[form](value)} is wrong")
    assert re.fullmatch(r'cannot log in: [\\"%2C]*\*{3}[\\"%2C\n]* is wrong', shown), shown


@pytest.mark.attack("A2-W10")
@pytest.mark.parametrize("value", SECRETS)
def test_secret_is_masked_in_multiline_base64(value: str) -> None:
    mask = build_masker([Server(url="https://x.example", headers={"X-Key": value})])
    for before in range(90):
        shown = mask(encodebytes(b"<" * before + value.encode() + b">" * 90).decode())
        data = b64encode(b"<" * before + value.encode())[: -4 if len(value) > 6 else None].decode()
        assert MASK in shown
        assert data[-8:] not in shown.replace("\n", "")


@pytest.mark.attack("A2-W10")
def test_escape_sequences_do_not_slow_down_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    scanned: list[int] = []
    real = replacer._substitute

    def count(data: bytes, found: object) -> object:
        scanned.append(len(data))
        return real(data, found)  # type: ignore[arg-type]

    mask = build_replacer(["Tq7vLm2Xk9Zp4Rw8"])
    assert mask("Tq7vLm2\\u0058k9Zp4Rw8") == "***"
    monkeypatch.setattr(replacer, "_substitute", count)
    assert mask("no escape in Tq7vLm2Xk9Zp4Rw8") == "no escape in ***"
    assert scanned == []  # ordinary text is scanned once
    parts = ["\\\\u005c" * 9000, "\\" * 20_000, "&amp;" * 9000, " \n" * 20_000, " " * 50_000, "\\nTq7v\n" * 20_000]
    for hostile in (*parts, "".join(parts)):
        scanned.clear()
        mask(hostile)
        assert len(scanned) <= 3 * replacer.MAX_DECODINGS + 1
        assert max(scanned, default=0) <= len(hostile)


@pytest.mark.attack("A2-W10")
def test_many_secrets_are_masked_like_few() -> None:
    chosen = Random(3)
    secrets = ["".join(chosen.choices("abcdefgh0123/+", k=chosen.randint(6, 30))) for _ in range(200)]
    all_of_them = build_replacer(secrets)
    for value in secrets[::10]:
        for form in FORMS.values():
            assert MASK in all_of_them(f"x {form(value)} y")
    assert all_of_them("an ordinary text\nof two lines" * 5000) == "an ordinary text\nof two lines" * 5000


# -- cuts --------------------------------------------------------------------------------------------------------------


def parts_of(value: str) -> list[str]:
    """The shortest parts of a secret that must not be seen where a text was cut."""
    return [value[:4], value[-4:]]


@pytest.mark.attack("A2-F7")
@pytest.mark.parametrize("form", ["plain", "json, \\/", "url, every byte", "base64", "hex"])
@pytest.mark.parametrize("keep", ["start", "end"])
def test_mask_and_cut_shows_no_part_of_a_secret(form: str, keep: str) -> None:
    value = "Tq7v/Lm2Xk9Zp4Rw8Yb6Nc1Vd"
    mask = build_masker([Server(command="x", env={"API_TOKEN": value})])
    written = FORMS[form](value).strip('"')
    for place in range(100 - len(written) - 2, 103):
        for fill in ("=", "=" * CUT_MARGIN_CHARS):  # the cut is also where what is masked ends
            text = "." * place + written + fill * 200
            text = text if keep == "start" else text[::-1].replace(written[::-1], written)
            shown = mask_and_cut(text, 100, mask, keep=keep)  # type: ignore[arg-type]
            assert len(shown) <= 101
            assert not any(part in shown for part in parts_of(written)), shown


@pytest.mark.attack("A2-F7")
@pytest.mark.parametrize("form", ["plain", "json, \\/", "url, every byte", "base64", "hex"])
def test_part_of_a_secret_next_to_a_cut_mark_is_masked(form: str) -> None:
    value = "Tq7v/Lm2Xk9Zp4Rw8Yb6Nc1Vd"
    mask = build_masker([Server(command="x", env={"API_TOKEN": value})])
    written = FORMS[form](value).strip('"')
    for kept in range(12 if form.startswith("url") else 5, len(written)):
        assert re.fullmatch(r"x \*\*\*\W?…", mask(f"x {written[:kept]}…")), mask(f"x {written[:kept]}…")
        assert re.fullmatch(r"….{0,3}\*\*\* x", mask(f"…{written[-kept:]} x")), mask(f"…{written[-kept:]} x")
        around = mask(f"failed: {written[:kept]}…; last line: …{written[-kept:]}, and {'…' * 99}{written[:kept]}… x")
        assert not any(part in around for part in parts_of(value))
    assert mask(f"x {CUT}") == f"x {CUT}"
    assert mask(f"x {value[:6]}") == f"x {value[:6]}"


@pytest.mark.attack("R2-B-2")
def test_secret_with_invisible_characters_inside_is_masked(tmp_path: Path) -> None:
    secret = "Zq8wT3xK9-Lm2vB"
    program = (
        "import os, sys\nsecret = os.environ['PLAIN']\n"
        "for between in '\\u200b', '\\0', '\\x08', '\\u00ad', '\\ufe0f', '\\u202e', '\\U000e0041':\n"
        "    print('x', between.join(secret), file=sys.stderr)\nsys.exit(3)"
    )
    entry = {"command": sys.executable, "args": ["-c", program], "env": {"PLAIN": secret, "PYTHONUTF8": "1"}}
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"telltale": entry}}))
    for words in (["logs", "telltale", "--wait", "5"], ["show", "telltale", "--wait", "5"]):
        done = CliRunner().invoke(app, [*words, "--config", str(file)])
        assert "***" in done.output and secret not in sanitize.remove_invisible(done.output + done.stderr), words
    assert replacer.UNPRINTABLE.pattern == sanitize._UNPRINTABLE.pattern


@pytest.mark.attack("R2-C-4")
def test_fully_url_encoded_secret_is_masked() -> None:
    secret = "Tq7vLm2Xk9Zp4Rw8"
    encoded = "".join(f"%{ord(char):02X}" for char in secret)
    mask = replacer.build_replacer([secret])
    assert mask(f"at /{encoded}/x and {encoded.lower()}") == "at /***/x and ***"


@pytest.mark.anyio
@pytest.mark.attack("R4-2")
async def test_callers_token_is_masked_in_the_result(tmp_path: Path) -> None:
    async with ExchangeIssuer() as issuer, on_behalf(tmp_path, issuer, {"jira": Target(issuer)}) as found:
        alice = issuer.token("alice")
        assert "result" in await found.call("jira__echo", {"text": "x"}, token=alice)
        (token,) = issuer.valid
        for _ in range(2):  # the second call is a flight
            answer = await found.call("jira__echo", {"text": f"Bearer {token}"}, token=alice)
            assert answer["result"]["content"][0]["text"] == "Bearer ***"


@pytest.mark.attack("R4-3")
def test_entry_secret_stays_masked_after_many_logins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_secrets, "MAX_TOKENS", 50)
    found = ServerSecrets()
    found.add("secret-of-the-entry")
    found.add_token("token-in-use")
    for number in range(300):
        found.add_token(f"token-{number:06}")
        found.add_token("token-in-use")
    assert found.may_be_in(b"secret-of-the-entry") and found.may_be_in(b"token-in-use")
    assert not found.may_be_in(b"token-000000") and len(found.texts) == 51


@pytest.mark.attack("R4-9")
def test_secret_in_an_image_like_part_is_masked() -> None:
    secrets_of("gallery").add("secret-of-the-entry")
    redactor = ResultRedactor("gallery")
    said = "the token is secret-of-the-entry"
    file = {"mimeType": "text/plain", "data": said, "blob": said, "nested": [{"type": "text", "data": said}]}
    result = ToolResult("gallery", "read", {"content": [], "structuredContent": {"file": file}})
    assert "secret" not in str(redactor.redact_now(result).raw)
