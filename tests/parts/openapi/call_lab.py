"""Every operation of a document, called once through a hub with arguments made from its schema, at a mock of the API:
what arrives must be what the document prescribes, and what is answered must come back."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.parts.openapi.expected_requests import Given, prescriptions
from tests.parts.openapi.mock import Answer, Mock
from tests.parts.openapi.samples import NoSample, sample
from toolway import CallError, Hub
from toolway.parts.openapi.document.loader import load_document
from toolway.parts.openapi.document.models import ApiDocument, Operation
from toolway.parts.openapi.document.parser import parse_document

SECRET = "canary-of-{}"
BYTES = bytes(range(256))


@dataclass
class Report:
    name: str
    operations: int = 0
    called: int = 0
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def line(self) -> str:
        return (
            f"{self.name:32} {self.operations:6} operations {self.called:6} called as prescribed "
            f"{len(self.wrong):4} not, in {self.seconds:.1f} s"
        )


async def call_all(path: Path, seed: int = 0, every: int = 1) -> Report:
    """Call every operation of the document, or one in `every`."""
    data = path.read_bytes()
    document = load_document(data, source=path.name)
    wanted = prescriptions(parse_document(data, path.name)[0])
    report = Report(path.name, len(document.operations))
    began = time.monotonic()
    base = urlsplit(document.servers[0].url).path.rstrip("/") if document.servers else ""
    with Mock() as mock:
        entry = {
            "type": "openapi",
            "url": mock.origin + base,
            "openapi": {
                "file": str(path),
                "security": {name: SECRET.format(name) for name in document.security_schemes},
            },
            "limits": {"maxTools": 10_000},
        }
        async with Hub({"api": entry}, catalog_storage=None) as hub:
            await hub.wait_ready("api")
            assert len(hub.known_tools()) == len(document.operations)
            for number, operation in enumerate(document.operations):
                if number % every == 0:
                    problems = await _call(hub, mock, document, operation, wanted, base, seed + number)
                    report.called += not problems
                    report.wrong += [f"{operation.method} {operation.path}: {each}" for each in problems]
    report.seconds = time.monotonic() - began
    return report


async def _call(
    hub: Hub, mock: Mock, document: ApiDocument, operation: Operation, wanted: Any, base: str, seed: int
) -> list[str]:
    try:
        arguments = _fitting(operation, sample(operation.tool["inputSchema"], seed))
        mock.answer = _answer(operation, seed)
    except NoSample as exc:
        return [f"no value fits: {exc}"]
    mock.arrived.clear()
    try:
        reply = await hub.call_tool(f"api.{operation.name}", arguments, max_attempts=1)
    except CallError as exc:
        return [f"{exc.message}: {exc.detail}"]
    if len(mock.arrived) != 1:
        return [f"{len(mock.arrived)} requests arrived"]
    given: dict[tuple[str, str], Any] = {
        (each.location, each.name): arguments[each.argument]
        for each in operation.parameters
        if each.argument in arguments
    }
    body = arguments.get(operation.body.argument) if operation.body is not None else None
    extra = _credentials(document, operation)
    problems: list[str] = wanted[operation.method, operation.path].check(mock.arrived[0], given, body, base, extra)
    if reply.is_error or not _came_back(operation, mock.answer, reply.raw):
        problems.append(f"the answer came back as {str(reply.raw)[:200]}")
    return problems


def _fitting(operation: Operation, arguments: dict[str, Any]) -> dict[str, Any]:
    """A schema does not say which content type goes with which form of body; someone who calls knows."""
    body = operation.body
    if body is not None and body.type_argument:
        is_form = isinstance(arguments.get(body.argument), dict)
        kinds = [each.media_type for each in body.contents if is_form or "form" not in each.media_type]
        if arguments.get(body.type_argument) not in kinds:
            arguments = {**arguments, body.type_argument: kinds[0]}
    return arguments


def _answer(operation: Operation, seed: int) -> Answer:
    """As the document promises it."""
    if operation.method == "HEAD":
        return Answer()
    if "outputSchema" in operation.tool:
        value = sample(operation.tool["outputSchema"], seed)
        value = value.get("result") if operation.wraps_result else value
        return Answer(200, "application/json", json.dumps(value).encode())
    good = [each for each in operation.responses if each.status.startswith("2")]
    kinds = [kind for each in good for kind in each.media_types if "*" not in kind]
    if not kinds:
        return Answer(204)
    if "json" in kinds[0]:
        return Answer(200, kinds[0], b'{"any": ["thing"]}')
    return Answer(200, kinds[0], BYTES if not kinds[0].startswith("text/") else "tëxt".encode())


def _came_back(operation: Operation, answer: Answer, raw: dict[str, Any]) -> bool:
    if "json" in answer.kind:
        value, found = json.loads(answer.body), raw.get("structuredContent")
        return found == value or found == {"result": value}
    content = raw["content"][0]
    if answer.body == BYTES:
        return b64encode(BYTES).decode() in (content.get("data"), content.get("resource", {}).get("blob")) or (
            content["type"] == "text"
        )
    return bool(content["type"] == "text")


def _credentials(document: ApiDocument, operation: Operation) -> Given:
    """What the document wants every request to carry, in its place."""
    needed = [*next((each for each in operation.security if each), {})]
    keys = {(each.location, each.parameter): name for name, each in document.security_schemes.items()}
    needed += [keys[key] for each in operation.parameters if (key := (each.location, each.name)) in keys]
    extra: dict[tuple[str, str], str] = {}
    for name in dict.fromkeys(needed):
        scheme, value = document.security_schemes[name], SECRET.format(name)
        if scheme.kind == "apiKey":
            extra[scheme.location, scheme.parameter] = value
        elif scheme.scheme.lower() == "basic":
            extra["header", "Authorization"] = f"Basic {b64encode(value.encode()).decode()}"
        else:
            extra["header", "Authorization"] = f"Bearer {value}"
    return extra
