"""The lifecycle of a server for docs/explanation/upstream-life.md: a picture, and a table of all states and events."""

from __future__ import annotations

from html import escape

from toolway.upstream.state import TRANSITIONS, State, StateEvent

_BOX = (116, 36)  # width and height of a state
#: Centers of the states in the picture. Stopping is left to the table: it is possible in every state.
_PLACES = {
    State.IDLE: (75, 110),
    State.STARTING: (275, 110),
    State.READY: (605, 110),
    State.BACKING_OFF: (440, 190),
    State.FAILED: (440, 270),
}
#: How the arrows run, and where their labels are: path, x, y, text-anchor.
_ARROWS = {
    (State.IDLE, StateEvent.WANTED): ("M133 110 H213", 173, 102, "middle"),
    (State.STARTING, StateEvent.CONNECTED): ("M333 110 H543", 440, 102, "middle"),
    (State.READY, StateEvent.UNUSED): ("M605 92 C605 20 75 20 75 88", 340, 30, "middle"),
    (State.STARTING, StateEvent.ENDED): ("M320 128 L388 168", 366, 146, "start"),
    (State.BACKING_OFF, StateEvent.DUE): ("M382 184 L300 132", 330, 172, "end"),
    (State.READY, StateEvent.ENDED): ("M575 128 L502 170", 532, 146, "end"),
    (State.STARTING, StateEvent.GAVE_UP): ("M262 128 C262 230 320 264 378 264", 302, 216, "start"),
    (State.FAILED, StateEvent.DUE): ("M382 280 C270 280 236 220 240 132", 236, 218, "end"),
    (State.READY, StateEvent.GAVE_UP): ("M605 128 C605 220 560 270 502 270", 572, 216, "end"),
}
_WORDS = {
    StateEvent.WANTED: "a call needs the server, or it isn't started on demand",
    StateEvent.CONNECTED: "its version is known and its tools are listed",
    StateEvent.ENDED: "the start failed, the connection was lost, or health checks failed",
    StateEvent.GAVE_UP: "the same, and the restart limit is reached",
    StateEvent.DUE: "it's time for the next start, or someone asked for a restart",
    StateEvent.UNUSED: "no calls for `idle_timeout` seconds",
    StateEvent.STOP: "the hub closes, or the server was removed",
    StateEvent.GONE: "connection and process have ended",
}
_STYLE = (
    "text{font:15px system-ui,sans-serif;fill:#1f2433}.event{font-size:13px;fill:#4a5268}"
    ".state{fill:#eef1fb;stroke:#5c6bc0;stroke-width:1.5}.arrow{fill:none;stroke:#5c6bc0;stroke-width:1.5}"
)


def picture() -> str:
    """Return the states and events as SVG, except stopping."""
    shown = {(state, event) for state in _PLACES for event in TRANSITIONS[state] if event is not StateEvent.STOP}
    if shown != set(_ARROWS):
        raise SystemExit(f"scripts/lifecycle.py must show exactly these events: {sorted(shown)}")
    width, height = _BOX
    arrows = [
        f'<path class="arrow" d="{path}" marker-end="url(#to)"/>'
        f'<text class="event" x="{x}" y="{y}" text-anchor="{anchor}">{escape(event)}</text>'
        for (_, event), (path, x, y, anchor) in _ARROWS.items()
    ]
    boxes = [
        f'<rect class="state" x="{x - width // 2}" y="{y - height // 2}" width="{width}" height="{height}" rx="8"/>'
        f'<text x="{x}" y="{y + 5}" text-anchor="middle">{escape(state)}</text>'
        for state, (x, y) in _PLACES.items()
    ]
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 680 310" role="img">',
            f"<title>Lifecycle of a server</title><style>{_STYLE}</style>",
            '<defs><marker id="to" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">',
            '<path d="M0 0 L8 4 L0 8z" fill="#5c6bc0"/></marker></defs>',
            '<rect width="680" height="310" rx="10" fill="#fff"/>',
            *arrows,
            *boxes,
            "</svg>\n",
        ]
    )


def table() -> str:
    """Return every state with its events and the states after them, and what the events mean."""
    rows = ["| in this state | when | the state becomes |", "|---|---|---|"]
    for state, events in TRANSITIONS.items():
        rows += [f"| `{state}` | {event} | `{after}` |" for event, after in events.items()]
    words = ["| event | what happened |", "|---|---|", *(f"| {event} | {_WORDS[event]} |" for event in StateEvent)]
    return "\n".join([*rows, "", *words])
