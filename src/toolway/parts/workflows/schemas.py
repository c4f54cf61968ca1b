"""JSON Schemas of `/admin/runs`. The schemas of agent runs are built from them."""

from __future__ import annotations

from typing import Final

from toolway.gateway.admin.schema import (
    ANY_OBJECT,
    BOOLEAN,
    INTEGER,
    NUMBER,
    STRING,
    STRINGS,
    array_of,
    nullable,
    object_of,
)

RUN: Final = object_of(
    {
        **dict.fromkeys(("id", "workflow", "state", "principal", "code"), STRING),
        "created": NUMBER,
        "ended": nullable("number"),
        "due": nullable("number"),
        "questions": array_of(
            object_of({"step": STRING, "kind": STRING, "title": STRING, "until": nullable("number")})
        ),
    }
)
RUN_STEP: Final = object_of(
    {
        **dict.fromkeys(("step", "kind", "tool", "effect", "state", "via", "arguments", "outcome"), STRING),
        "attempt": INTEGER,
        "began": NUMBER,
        "ended": nullable("number"),
        "life": INTEGER,
    }
)
RUN_ACTION: Final = object_of(
    {
        **dict.fromkeys(("action", "step", "label", "effect"), STRING),
        "body": ANY_OBJECT,
        "form?": {"type": ["object", "null"]},
    }
)
SCHEMAS: Final = {
    "RunList": object_of({"enabled": BOOLEAN, "runs": array_of(RUN), "workflows": STRINGS}),
    "RunDetail": object_of(
        {
            **dict.fromkeys(("input", "output", "error"), STRING),
            "steps": array_of(RUN_STEP),
            "more": BOOLEAN,
            "messages": array_of(object_of({"kind": STRING, "step": STRING, "by": STRING, "at": NUMBER})),
            "actions": array_of(RUN_ACTION),
        },
        RUN,
    ),
    "RunApproval": object_of({"yes": BOOLEAN, "step?": STRING, "note?": STRING}),
    "RunAnswer": object_of({"data": ANY_OBJECT, "step?": STRING}),
    "RunSettlement": object_of({"happened": BOOLEAN, "step?": STRING, "result?": {}}),
    "RunCancellation": object_of({"undo?": BOOLEAN, "step?": STRING}),
    "RunResumption": object_of({"step?": STRING}),
    "RunStored": object_of({"run": STRING, "stored": BOOLEAN}),
}
