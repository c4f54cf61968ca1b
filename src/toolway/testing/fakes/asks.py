"""Tools that ask the caller back.

Handshake era: a request from the server in the middle of the call. Modern era: the result `input_required`, and the
same call again with the answer; the server keeps nothing between the rounds, all of it travels in `requestState`.
"""

from __future__ import annotations

import binascii
import json
import zlib

from toolway.testing.fakes.call import Ask
from toolway.testing.fakes.wire import INVALID_PARAMS, MISSING_CAPABILITY, RpcError, object_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from toolway.testing.fakes.call import Call, Steps
    from toolway.testing.fakes.server import Server
    from toolway.testing.fakes.wire import Json


def elicit(server: Server, call: Call) -> Json | Steps:
    """Asks for a name, so many rounds in a row, and says the answers."""
    rounds = int(call.arguments.get("rounds", 1))
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    questions = [{"message": f"Round {round}: your name?", "requestedSchema": schema} for round in range(1, rounds + 1)]
    if call.modern:
        questions = [{"mode": "form", **question} for question in questions]
    return _ask(call, "elicitation", "elicitation/create", questions)


def sample(server: Server, call: Call) -> Json | Steps:
    """Asks the caller's model for a completion, and says it."""
    message = {"role": "user", "content": {"type": "text", "text": "Say something."}}
    return _ask(call, "sampling", "sampling/createMessage", [{"messages": [message], "maxTokens": 100}])


def roots(server: Server, call: Call) -> Json | Steps:
    """Asks for the caller's roots, and says them."""
    return _ask(call, "roots", "roots/list", [{}])


def _ask(call: Call, capability: str, method: str, questions: list[Json]) -> Json | Steps:
    if capability not in call.capabilities:
        if call.modern:
            needed: Json = {capability: {}}
            raise RpcError(MISSING_CAPABILITY, f"the client lacks {capability}", {"requiredCapabilities": needed})
        return {**call.say(f"the client lacks {capability}"), "isError": True}
    return _modern(call, method, questions) if call.modern else _handshake(call, method, questions)


def _handshake(call: Call, method: str, questions: list[Json]) -> Steps:
    answers = []
    for question in questions:
        reply = yield Ask(method, question)
        answers.append(reply["result"] if "result" in reply else {"error": reply.get("error")})
    return _said(call, answers)


def _modern(call: Call, method: str, questions: list[Json]) -> Json:
    answers = _answers_so_far(call)
    key = f"ask-{len(answers) + 1}"
    responses = object_of(call.params.get("inputResponses"))
    asked = call.params.get("requestState") is not None
    if asked and key in responses:
        answers.append(responses[key])
        key = f"ask-{len(answers) + 1}"
    if len(answers) >= len(questions):
        return _said(call, answers)
    return {
        "resultType": "input_required",
        "inputRequests": {key: {"method": method, "params": questions[len(answers)]}},
        "requestState": _seal({"answers": answers, "arguments": _digest(call.arguments)}),
    }


def _answers_so_far(call: Call) -> list[Any]:
    state = call.params.get("requestState")
    if state is None:
        if "inputResponses" in call.params:
            raise RpcError(INVALID_PARAMS, "inputResponses without the requestState that was given")
        return []
    opened = _open(state)
    if opened["arguments"] != _digest(call.arguments):
        raise RpcError(INVALID_PARAMS, "the arguments of the retry differ")
    answers: list[Any] = opened["answers"]
    return answers


def _said(call: Call, answers: list[Any]) -> Json:
    text = json.dumps(answers[0] if len(answers) == 1 else answers)
    return call.say(text, answers=answers)


def _digest(value: Any) -> int:
    return zlib.crc32(json.dumps(value, sort_keys=True).encode())


def _seal(state: Json) -> str:
    text = binascii.b2a_base64(json.dumps(state).encode(), newline=False).decode()
    return f"{text}.{zlib.crc32(text.encode())}"


def _open(sealed: Any) -> Json:
    text, _, check = str(sealed).rpartition(".")
    if check != str(zlib.crc32(text.encode())):
        raise RpcError(INVALID_PARAMS, "the requestState was altered")
    state: Json = json.loads(binascii.a2b_base64(text))
    return state
