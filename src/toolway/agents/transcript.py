"""Transcript of an agent run, from the entries of its journal: the conversation, without any request to a model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from toolway.protocol.tool_names import parse_tool_name
from toolway.types import Json
from toolway.workflows.journal import Entry, RunRecord

_MODEL_STEP = re.compile(r"model/(\d+)(?:~\d+)?")
_TOOL_STEP = re.compile(r"tool/(\d+)\.(\d+)")
_APPROVAL = re.compile(r"(tool/\d+\.\d+)/approve")


def read_messages(record: RunRecord, entries: Iterable[Entry]) -> list[Json]:
    """Return the conversation of a run: the prompt, the answers of the model, and the results of its calls.

    Each message has `role` (user, assistant, tool), `content`, and its `step`. An answer has `tool_calls`, its tokens,
    its price (`usd`) and its model; a result has `tool`, `executed` and, if a user was asked, `approved_by`.
    """
    last: dict[str, Entry] = {}
    for entry in entries:
        known = last.get(entry.path)
        if known is None or entry.attempt >= known.attempt:
            last[entry.path] = entry
    messages: list[Json] = [{"role": "user", "content": (record.input or {}).get("prompt", ""), "step": ""}]
    calls: dict[str, Json] = {}  # by step
    for entry in sorted(last.values(), key=_order):
        if (match := _MODEL_STEP.fullmatch(entry.path)) is not None:
            messages.append(_read_answer(entry))
            calls.update((f"tool/{match[1]}.{place}", call) for place, call in _numbered_calls(messages[-1]))
        elif (match := _APPROVAL.fullmatch(entry.path)) is not None:
            if entry.state == "failed":
                call = calls.get(match[1]) or {"tool": "", "arguments": None}
                text = (entry.body or {}).get("message", "")
                messages.append({"role": "tool", "content": text, **call, "executed": "no", "step": match[1]})
        elif (match := _TOOL_STEP.fullmatch(entry.path)) is not None:
            message = _read_result(entry, last.get(f"{match[0]}/approve"))
            if entry.kind == "child":  # another agent
                message |= {**calls.get(match[0], {}), "run": (entry.body or {}).get("run")}
            messages.append(message)
    return messages


def _numbered_calls(message: Json) -> Iterable[tuple[int, Json]]:
    return enumerate(message.get("tool_calls") or [], 1)


def read_model_name(name: str) -> str:
    """Return the qualified name `server.tool` for a tool name that a model has used, such as `server__tool`."""
    found = parse_tool_name(name)
    return name if found is None else str(found)


def read_arguments(args: Any) -> Any:
    """Return a tool call's arguments as a JSON value. A string that is not JSON stays a string."""
    if not isinstance(args, str):
        return args
    try:
        return msgspec.json.decode(args)
    except (msgspec.DecodeError, RecursionError):
        return args


def _order(entry: Entry) -> tuple[float, int, int, int]:
    if (match := _MODEL_STEP.fullmatch(entry.path)) is not None:
        return (int(match[1]), 0, 0, entry.attempt)
    if (match := _TOOL_STEP.fullmatch(entry.path.removesuffix("/approve"))) is not None:
        return (int(match[1]), 1, int(match[2]), entry.attempt)
    return (0, 0, 0, 0)


def _read_answer(entry: Entry) -> Json:
    data = (entry.body or {}).get("data") or {}
    message: Json = {"role": "assistant", "content": "", "step": entry.path, "state": entry.state}
    if "error" in data:
        message["error"] = data["error"]["message"]
    response = data.get("response")
    if response is None:
        return message
    parts: list[Json] = response.get("parts") or []
    usage = response.get("usage") or {}
    message["content"] = "".join(part["content"] for part in parts if part.get("part_kind") == "text")
    calls = [
        {"tool": read_model_name(part["tool_name"]), "arguments": read_arguments(part.get("args"))}
        for part in parts
        if part.get("part_kind") == "tool-call"
    ]
    message.update(
        tool_calls=calls,
        model=response.get("model_name"),
        input_tokens=usage.get("input_tokens", 0),
        output_tokens=usage.get("output_tokens", 0),
        cached_tokens=usage.get("cache_read_tokens", 0),
        reasoning_tokens=usage.get("output_reasoning_tokens", 0),
        usd=data.get("usd"),
    )
    return message


def _read_result(entry: Entry, approval: Entry | None) -> Json:
    body: Any = entry.body if isinstance(entry.body, dict) else {}
    executed = {"done": "yes", "not_executed": "no"}.get(entry.state) or body.get("executed") or "unknown"
    text = body.get("text") or body.get("detail") or body.get("message") or ""
    if entry.kind == "child" and isinstance(body.get("data"), dict):
        answer = body["data"].get("output")
        text = answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()
    message: Json = {
        "role": "tool",
        "content": text if entry.state != "begun" else "",
        "tool": entry.tool,
        "arguments": entry.args,
        "executed": executed,
        "step": entry.path,
    }
    if approval is not None and approval.state == "done":
        message["approved_by"] = (approval.body or {}).get("by") or ""
    return message
