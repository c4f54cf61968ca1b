"""Answers server requests at the terminal during a call: elicitation and sampling.

Elicitation is a form, asked field by field, or a URL, which is opened only after the user agreed. Sampling shows what
the server would ask a model, and the user writes the answer or refuses. Without a terminal nobody is asked: the server
gets an error, and the command prints what was asked.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Final

from toolway._os import hidden_input, read_terminal
from toolway.cli.commands.login import BROWSER_START_TIMEOUT_S, can_open_browser, start_browser
from toolway.cli.output import Output
from toolway.errors import ProtocolError
from toolway.events import ServerLog
from toolway.protocol.constants import INVALID_REQUEST, URL_ELICITATION_REQUIRED
from toolway.protocol.json_schema import SchemaValidator
from toolway.protocol.jsonrpc import encode_json
from toolway.protocol.schema_violations import describe_violations
from toolway.types import CallbackError, Json
from toolway.upstream.server_requests import check_server_request, clean_server_request

OWN_LOGGER: Final = "toolway"
REFUSED_CODE: Final = -1  # of the error that MCP shows for a sampling request that the user rejects
MAX_LINE_BYTES: Final = 64 * 1024
MAX_ANSWER_LINES: Final = 10_000  # of a sampling answer
MAX_SHOWN_CHARS: Final = 4000  # of one message of a sampling request
_SECRET_FORMATS: Final = ("password", "secret")
_YES: Final = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}


class EndOfInput(Exception):
    """Raised when the user ends the input (Ctrl-D) instead of answering."""


class ServerQuestions:
    """Hub callbacks that ask the user at this terminal, one request at a time.

    It also prints the log messages that servers send, from `log_level` on. `unanswered` describes the requests that
    nobody could be asked, for lack of a terminal.
    """

    log_level: Final = "warning"

    def __init__(self, output: Output) -> None:
        self._output = output
        self._can_ask = not output.as_json and sys.stdin.isatty() and sys.stderr.isatty()
        self._turn = asyncio.Lock()
        self.unanswered: list[str] = []

    async def elicit(self, server: str, params: Json) -> Json:
        """Ask the user for the data of a form, or whether to open a URL. Return the answer for the server."""
        message = str(params.get("message") or "").removeprefix(f"[{server}] ")  # a gateway puts the name before it
        url = params.get("url")
        if not self._can_ask:
            shown = f"{message} ({url})" if url else _describe_form(message, params)
            raise self._no_terminal(f"{server} asked: {shown}")
        async with self._turn:
            with self._output.paused_spinner():
                # Indented, so no line of the server looks like one of ours.
                self._show(f"{server} asks: {message}".replace("\n", "\n  "), "bold")
                try:
                    return await (self._open_url(str(url)) if url else self._fill_form(server, params))
                except EndOfInput:
                    self._show("cancelled", "dim")
                    return {"action": "cancel"}

    def show_log(self, log: ServerLog) -> None:
        """Print a log message that a server sent during the call."""
        if log.logger != OWN_LOGGER:  # our notes about a server are shown with its status
            text = log.data if isinstance(log.data, str) else encode_json(log.data).decode()
            self._output.info(f"{log.server} {log.level}: {text[:MAX_SHOWN_CHARS]}".replace("\n", "\n  "), "dim")

    async def sample(self, server: str, params: Json) -> Json:
        """Show the user what the server would ask a model. Return the answer that the user writes.

        Raises `CallbackError` if the user refuses.
        """
        if not self._can_ask:
            raise self._no_terminal(f"{server} asked for a model's answer to: {_messages_text(params)[:500]}")
        async with self._turn:
            with self._output.paused_spinner():
                self._show(f"{server} asks for a model's answer:", "bold")
                if params.get("systemPrompt"):
                    self._show(f"system: {str(params['systemPrompt'])[:MAX_SHOWN_CHARS]}")
                self._show(_messages_text(params).replace("\n", "\n  "))
                try:
                    if await self._choose("Answer it yourself?", {"y": "type the answer", "n": "refuse"}, "n") == "y":
                        return {"role": "assistant", "model": "human", "stopReason": "endTurn"} | {
                            "content": {"type": "text", "text": await self._read_text()}
                        }
                except EndOfInput:
                    pass
                raise CallbackError(REFUSED_CODE, "the user rejected the sampling request")

    def _no_terminal(self, question: str) -> CallbackError:
        self.unanswered.append(question)
        return CallbackError(INVALID_REQUEST, f"no terminal to ask the user at; {question}")

    async def visit(self, error: ProtocolError) -> bool:
        """Offer to open the addresses that a server wants visited first. True if there are any."""
        data = error.data if isinstance(error.data, dict) else {}
        demanded = data.get("elicitations") if error.rpc_code == URL_ELICITATION_REQUIRED else None
        found = [each for each in demanded if isinstance(each, dict)] if isinstance(demanded, list) else []
        for each in found:
            check_server_request("elicitation/create", {**each, "mode": "url"})
            await self.elicit(error.server, clean_server_request(each))
        return bool(found)

    # -- elicitation --------------------------------------------------------------------------------------------------

    async def _open_url(self, url: str) -> Json:
        self._show(f"  {url}")
        choices = {"y": "open it in your browser", "n": "decline", "c": "cancel"}
        answer = await self._choose("Open this address?", choices)
        if answer != "y":
            return {"action": "decline" if answer == "n" else "cancel"}
        if can_open_browser():
            starting = start_browser(url)
            await asyncio.to_thread(starting.join, BROWSER_START_TIMEOUT_S)  # the thread ends with this process
        else:
            self._show("no browser found; open the address yourself")
        return {"action": "accept"}

    async def _fill_form(self, server: str, params: Json) -> Json:
        schema = params.get("requestedSchema")
        fields = _properties(schema)
        required = schema.get("required") or () if isinstance(schema, dict) else ()
        choices = {"y": "answer" if fields else "accept", "n": "decline", "c": "cancel"}
        answer = await self._choose("Answer?" if fields else "Accept?", choices, "y" if fields else "")
        while answer in ("y", "e"):
            content = {}
            for name, field in fields.items():
                value = await self._ask_field(name, field, required=name in required)
                if value is not None:
                    content[name] = value
            if not fields:
                return {"action": "accept", "content": {}}
            sends = {"y": f"send it to {server}", "e": "edit", "n": "decline", "c": "cancel"}
            answer = await self._choose("Send?", sends, "y")
            if answer == "y":
                return {"action": "accept", "content": content}
        return {"action": "decline" if answer == "n" else "cancel"}

    async def _ask_field(self, name: str, field: Json, *, required: bool) -> Any:
        """Ask for one value until it fits the schema of the field; None if an optional field is left empty."""
        options, several = _options_of(field)
        default = field.get("default")
        is_secret = field.get("format") in _SECRET_FORMATS or field.get("writeOnly") is True
        if field.get("description"):
            self._show(f"  {field['description']}".replace("\n", "\n  "), "dim")
        for number, (_, label) in enumerate(options, start=1):
            self._show(f"  {number}) {label}")
        hints = [_kind_hint(field, options, several), "" if required else "optional"]
        hint = ", ".join(each for each in hints if each)
        shown = "" if default is None else f" [{'hidden' if is_secret else _default_text(default, options)}]"
        prompt = f"{field.get('title') or name}{f' ({hint})' if hint else ''}{shown}: "
        validator = SchemaValidator(field)
        while True:
            text = await self._ask(prompt, hidden=is_secret)
            if not text:
                if default is not None:
                    return default
                if not required:
                    return None
                self._show("  it is required; Ctrl-D cancels", "yellow")
                continue
            try:
                value = _parse_value(text, field, options, several)
            except ValueError as exc:
                self._show(f"  {exc}", "yellow")
                continue
            if validator.is_valid(value):
                return value
            for violation in describe_violations(validator, value)[0][:1]:
                self._show(f"  it {violation.problem}; expected {violation.expected}", "yellow")

    # -- terminal -----------------------------------------------------------------------------------------------------

    def _show(self, text: str, style: str = "") -> None:
        self._output.print_question(text, style)

    async def _choose(self, question: str, choices: Mapping[str, str], default: str = "") -> str:
        """Ask until the user types one of the letters; an empty line means `default`, if there is one."""
        words = ", ".join(f"{letter} = {meaning}" for letter, meaning in choices.items())
        while True:
            text = (await self._ask(f"{question} {words}{f' [{default}]' if default else ''}: ")).lower()
            letter = text[:1] or default
            if letter in choices and text in ("", letter, "yes", "no"):
                return letter

    async def _read_text(self) -> str:
        self._show("type the answer; an empty line ends it", "dim")
        lines: list[str] = []
        while len(lines) < MAX_ANSWER_LINES:
            try:
                line = await self._ask("> ")
            except EndOfInput:
                break
            if not line:
                break
            lines.append(line)
        return "\n".join(lines)

    async def _ask(self, prompt: str, *, hidden: bool = False) -> str:
        """Print a prompt and return the line that the user types. Raises `EndOfInput` at the end of the input."""
        with hidden_input(sys.stdin.fileno()) if hidden else nullcontext():
            sys.stderr.write(self._output.sanitize(prompt).replace("\n", " "))
            sys.stderr.flush()
            data = await read_terminal(sys.stdin.fileno(), MAX_LINE_BYTES)
        if hidden:
            sys.stderr.write("\n")
        if not data:
            sys.stderr.write("\n")
            raise EndOfInput
        return data.decode(errors="replace").strip()


# -- fields of a form --------------------------------------------------------------------------------------------------


def _properties(schema: object) -> dict[str, Json]:
    found = schema.get("properties") if isinstance(schema, dict) else None
    return {name: each for name, each in found.items() if isinstance(each, dict)} if isinstance(found, dict) else {}


def _options_of(field: Json) -> tuple[list[tuple[Any, str]], bool]:
    """Return the values of an enum with their labels, and whether several may be chosen."""
    items = field.get("items")
    if field.get("type") == "array" and isinstance(items, dict):
        return _options_of({**items, "type": "string"})[0], True
    titled = field.get("oneOf") or field.get("anyOf")
    if isinstance(titled, list):
        found = [each for each in titled if isinstance(each, dict) and "const" in each]
        return [(each["const"], str(each.get("title") or each["const"])) for each in found], False
    values = field.get("enum")
    if not isinstance(values, list):
        return [], False
    names = field.get("enumNames")
    labels = names if isinstance(names, list) and len(names) == len(values) else values
    return [(value, str(label)) for value, label in zip(values, labels, strict=True)], False


def _kind_hint(field: Json, options: list[tuple[Any, str]], several: bool) -> str:
    if options:
        return "numbers with commas" if several else "a number"
    if several:
        return "with commas"
    kind = field.get("type")
    if kind == "boolean":
        return "y or n"
    return str(field.get("format") or {"integer": "whole number", "number": "number"}.get(str(kind), ""))


def _default_text(default: Any, options: list[tuple[Any, str]]) -> str:
    if isinstance(default, list):
        return ", ".join(_default_text(each, options) for each in default)
    if isinstance(default, bool):
        return "y" if default else "n"
    return next((label for value, label in options if value == default), str(default))


def _parse_value(text: str, field: Json, options: list[tuple[Any, str]], several: bool) -> Any:
    """Return the value that a line means for a field. Raises `ValueError` with what is wrong."""
    if several:
        given = [each.strip() for each in text.split(",") if each.strip()]
        return [_pick(each, options) for each in given] if options else given
    if options:
        return _pick(text, options)
    kind = field.get("type")
    if kind == "boolean":
        if text.lower() not in _YES:
            raise ValueError("type y or n")
        return _YES[text.lower()]
    if kind in ("integer", "number"):
        try:
            return int(text) if kind == "integer" else _number(text)
        except ValueError:
            raise ValueError("type a whole number" if kind == "integer" else "type a number") from None
    return text


def _number(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        value = float(text)
    if value - value != 0:  # infinite, or not a number: JSON has neither
        raise ValueError(text)
    return value


def _pick(text: str, options: list[tuple[Any, str]]) -> Any:
    """Return the option that an answer means: by its value, label, or position."""
    for value, label in options:
        if text in (str(value), label):
            return value
    if text.isdecimal() and 0 < int(text) <= len(options):
        return options[int(text) - 1][0]
    raise ValueError(f"type a number from 1 to {len(options)}")


# -- what was asked ----------------------------------------------------------------------------------------------------


def _describe_form(message: str, params: Json) -> str:
    fields = _properties(params.get("requestedSchema"))
    return f"{message} ({', '.join(fields)})" if fields else message


def _messages_text(params: Json) -> str:
    """Return the messages of a sampling request as text, one per line or block."""
    messages = params.get("messages")
    lines = []
    for each in messages if isinstance(messages, list) else ():
        if isinstance(each, dict):
            content = each.get("content")
            blocks = content if isinstance(content, list) else [content]
            text = " ".join(_block_text(block) for block in blocks)
            lines.append(f"{each.get('role') or 'user'}: {text[:MAX_SHOWN_CHARS]}")
    return "\n".join(lines)


def _block_text(block: object) -> str:
    if not isinstance(block, dict):
        return ""
    return str(block["text"]) if isinstance(block.get("text"), str) else f"[{block.get('type') or 'content'}]"
