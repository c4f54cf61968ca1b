"""JSON Schemas of `/admin/agents`."""

from __future__ import annotations

from typing import Final

from toolway.gateway.admin.schema import BOOLEAN, INTEGER, NUMBER, STRING, STRINGS, array_of, nullable, object_of
from toolway.parts.workflows.schemas import RUN, RUN_ACTION, RUN_STEP

_AGENT_USAGE: Final = {
    **dict.fromkeys(("turns", "calls", "input_tokens", "output_tokens"), INTEGER),
    "usd": nullable("number"),
    "model": STRING,
    "prompt": STRING,
    "place": {"enum": ["gateway", "command"]},
}
_AGENT_CALL: Final = dict.fromkeys(("tool", "arguments", "effect"), STRING)
_AGENT_MESSAGE: Final = object_of(
    {
        **dict.fromkeys(("role", "step", "content", "error", "model", "tool", "executed", "approved_by"), STRING),
        "input_tokens": INTEGER,
        "output_tokens": INTEGER,
        "usd": nullable("number"),
        "tool_calls": array_of(object_of(_AGENT_CALL)),
    }
)
SCHEMAS: Final = {
    "AgentList": object_of(
        {"enabled": BOOLEAN, "runs": array_of(object_of(_AGENT_USAGE, RUN)), "problem": STRING},
    ),
    "AgentDetail": object_of(
        {
            **_AGENT_USAGE,
            **dict.fromkeys(("input", "output", "error", "instructions", "approve", "resume"), STRING),
            "tools": STRINGS,
            "untrusted": STRINGS,
            "budget": array_of(
                object_of({"unit": STRING, "used": nullable("number"), "limit": nullable("number")}),
            ),
            "questions": array_of(
                object_of(
                    {
                        **dict.fromkeys(("step", "kind", "title"), STRING),
                        "until": nullable("number"),
                        **_AGENT_CALL,
                    }
                )
            ),
            "conversation": array_of(_AGENT_MESSAGE),
            "steps": array_of(RUN_STEP),
            "more": BOOLEAN,
            "messages": array_of(object_of({"kind": STRING, "step": STRING, "by": STRING, "at": NUMBER})),
            "actions": array_of(RUN_ACTION),
        },
        RUN,
    ),
}
