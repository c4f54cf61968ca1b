"""The fake server with what only a bridge needs: logs, subscriptions, tasks, and prompts and resources that ask.

python tests/gateway/full_server.py [--era modern|legacy]      on stdin and stdout; `FullHttp` is it on a socket
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from toolway.testing import tools
from toolway.testing.faults import ActiveFaults
from toolway.testing.http_faults import HTTP_FAULTS
from toolway.testing.http_server import ENDPOINT_BY_TRANSPORT, FakeHttp
from toolway.testing.server import (
    PROMPTS,
    RESOURCES,
    UNKNOWN_FIELDS,
    FakeCall,
    FakePeer,
    FakeServer,
    ServerRequest,
    Wait,
    get_prompt,
    read_resource,
    server_capabilities,
)
from toolway.testing.stdio import StdioServer
from toolway.testing.stdio_faults import STDIO_FAULTS as PIPE_MODES
from toolway.testing.tools import elicit
from toolway.testing.wire import INVALID_PARAMS, SUBSCRIPTION_KEY, RpcError, as_object, make_notification

if TYPE_CHECKING:
    from toolway.testing.server import Steps

Json = dict[str, Any]
LEVELS = ("emergency", "alert", "critical", "error", "warning", "notice", "info", "debug")
LOG_KEY = "io.modelcontextprotocol/logLevel"
TASKS_KEY = "io.modelcontextprotocol/tasks"
VAST = 2**70
URL_REQUIRED = -32042
_FILTERS = ("toolsListChanged", "promptsListChanged", "resourcesListChanged")
_CHANGES = {
    "prompts": ("notifications/prompts/list_changed", "promptsListChanged"),
    "resources": ("notifications/resources/list_changed", "resourcesListChanged"),
}


class FullServer(FakeServer):
    def __init__(self, era: str) -> None:
        super().__init__(Toolbox(), name="full", era=era)
        self.levels: dict[FakePeer, str] = {}
        self.watched: dict[FakePeer, set[str]] = {}
        self.tasks: dict[str, Json] = {}
        self.more: dict[str, list[Json]] = {"prompts": [], "resources": []}

    def _dispatch(self, call: FakeCall) -> Json | Steps:
        act = _METHODS.get(call.method)
        return act(self, call) if act is not None else super()._dispatch(call)

    def _listen(self, call: FakeCall) -> Steps:
        asked = as_object(call.params.get("notifications"))
        honoured: Json = {key: True for key in _FILTERS if asked.get(key) is True}
        honoured |= {key: asked[key] for key in ("resourceSubscriptions", "taskIds") if key in asked}
        if "taskIds" in asked and TASKS_KEY not in as_object(call.capabilities.get("extensions")):
            raise RpcError(-32021, "the client lacks tasks", {"requiredCapabilities": {"extensions": {TASKS_KEY: {}}}})
        tag = {"_meta": {SUBSCRIPTION_KEY: call.id}}
        self.subscriptions[call] = honoured
        try:
            call.send(make_notification("notifications/subscriptions/acknowledged", {"notifications": honoured, **tag}))
            yield Wait(None)
        finally:
            del self.subscriptions[call]
        return tag

    def notify(self, method: str, params: Json, wanted: str, name: str) -> None:
        """Notify every listen whose filter `wanted` names this."""
        for call, honoured in list(self.subscriptions.items()):
            if name in honoured.get(wanted, ()):
                call.send(make_notification(method, {**params, "_meta": {SUBSCRIPTION_KEY: call.id}}))


def _capabilities() -> Json:
    list_changed = {"listChanged": True}
    return {
        **server_capabilities(),
        "prompts": list_changed,
        "resources": {"subscribe": True, **list_changed},
        "logging": {},
    }


# -- methods ----------------------------------------------------------------------------------------------------------


def _discover(server: FullServer, call: FakeCall) -> Json:
    return {**server._discover(call), "capabilities": {**_capabilities(), "extensions": {TASKS_KEY: {}}}}


def _initialize(server: FullServer, call: FakeCall) -> Json:
    return {**server._initialize(call), "capabilities": _capabilities()}


def _set_level(server: FullServer, call: FakeCall) -> Json:
    server.levels[call.peer] = call.params["level"]
    return {}


def _subscribe(server: FullServer, call: FakeCall) -> Json:
    server.watched.setdefault(call.peer, set()).add(call.params["uri"])
    return {}


def _unsubscribe(server: FullServer, call: FakeCall) -> Json:
    server.watched.setdefault(call.peer, set()).discard(call.params["uri"])
    return {}


def _prompts(server: FullServer, call: FakeCall) -> Json:
    return {"prompts": [*PROMPTS, {"name": "ask"}, *server.more["prompts"]]}


def _resources(server: FullServer, call: FakeCall) -> Json:
    return {"resources": [*RESOURCES, {"uri": "full://ask", "name": "ask"}, *server.more["resources"]]}


def _get_prompt(server: FullServer, call: FakeCall) -> Json | Steps:
    if call.params.get("name") != "ask":
        return get_prompt(call)
    return _dressed(elicit(server, call), _as_prompt)


def _read(server: FullServer, call: FakeCall) -> Json | Steps:
    if call.params.get("uri") != "full://ask":
        return read_resource(call)
    return _dressed(elicit(server, call), _as_contents)


def _dressed(outcome: Json | Steps, dress: Any) -> Json | Steps:
    if isinstance(outcome, Generator):
        return _later(outcome, dress)
    if outcome.get("resultType") == "input_required":
        return outcome
    dressed: Json = dress(outcome)
    return dressed


def _later(steps: Steps, dress: Any) -> Steps:
    outcome = yield from steps
    dressed: Json = dress(outcome)
    return dressed


def _as_prompt(outcome: Json) -> Json:
    return {"messages": [{"role": "user", "content": outcome["content"][0]}]}


def _as_contents(outcome: Json) -> Json:
    return {"contents": [{"uri": "full://ask", "text": outcome["content"][0]["text"]}]}


def _task(server: FullServer, call: FakeCall) -> Json:
    task = server.tasks.get(call.params.get("taskId", ""))
    if task is None:
        raise RpcError(INVALID_PARAMS, "Unknown task")
    if call.method == "tasks/get":
        return task
    if call.method == "tasks/cancel":
        task["status"] = "cancelled"
    else:
        task["answers"] = call.params.get("inputResponses")
    return {}


_METHODS: dict[str, Any] = {
    "server/discover": _discover,
    "initialize": _initialize,
    "logging/setLevel": _set_level,
    "resources/subscribe": _subscribe,
    "resources/unsubscribe": _unsubscribe,
    "prompts/list": _prompts,
    "prompts/get": _get_prompt,
    "resources/list": _resources,
    "resources/read": _read,
    "tasks/get": _task,
    "tasks/update": _task,
    "tasks/cancel": _task,
}


# -- tools ------------------------------------------------------------------------------------------------------------


def _log(server: FullServer, call: FakeCall) -> Json:
    """Logs at three levels while it works."""
    wanted = call.meta.get(LOG_KEY) if call.modern else server.levels.get(call.peer, "info")
    said = [level for level in ("debug", "info", "error") if wanted and LEVELS.index(level) <= LEVELS.index(wanted)]
    for level in said:
        params = {"level": level, "logger": "full", "data": {"words": level, "nothing": None}}
        call.send(make_notification("notifications/message", params))
    return call.text_result(" ".join(said))


def _touch(server: FullServer, call: FakeCall) -> Json:
    """Says that a resource has changed."""
    uri = call.arguments["uri"]
    for peer in [peer for peer, uris in server.watched.items() if uri in uris]:
        peer.send(make_notification("notifications/resources/updated", {"uri": uri}))
    server.notify("notifications/resources/updated", {"uri": uri}, "resourceSubscriptions", uri)
    return call.text_result("touched")


def _change(server: FullServer, call: FakeCall) -> Json:
    """Adds a prompt or a resource, and says so."""
    kind = call.arguments["kind"]
    number = len(server.more[kind]) + 1
    server.more[kind].append({"name": f"more_{number}", **({"uri": f"full://{number}"} if kind == "resources" else {})})
    server.broadcast(*_CHANGES[kind])
    return call.text_result("changed")


def _hold(server: FullServer, call: FakeCall) -> Steps:
    """Answers when it is cancelled, which is never."""
    yield Wait(None)
    return call.text_result("never")


def _odd(server: FullServer, call: FakeCall) -> Json:
    """Answers with what no specification knows, and numbers that few can hold."""
    outcome = tools.unknown_fields(server, call)
    assert isinstance(outcome, dict)
    return {**outcome, "structuredContent": {"vast": VAST, "none": None, "tiny": 0.1}}


def _declared(server: FullServer, call: FakeCall) -> Json:
    """Says what the caller declared, and what came in `_meta`."""
    return call.text_result(str(os.getpid()), capabilities=call.capabilities, meta=call.meta, pid=os.getpid())


def _start_task(server: FullServer, call: FakeCall) -> Json:
    """Begins a task."""
    if TASKS_KEY not in as_object(call.capabilities.get("extensions")):
        return call.text_result("at once")
    id_ = f"task-{len(server.tasks) + 1}"
    server.tasks[id_] = {"taskId": id_, "status": "working", "createdAt": "now", "ttlMs": None, **UNKNOWN_FIELDS}
    return {"resultType": "task", **server.tasks[id_]}


def _finish_task(server: FullServer, call: FakeCall) -> Json:
    """Ends a task of this server, by its own name for it."""
    id_ = call.arguments["task"]
    server.tasks[id_] |= {"status": "completed", "result": {"content": [], "big": VAST}}
    server.notify("notifications/tasks", server.tasks[id_], "taskIds", id_)
    return call.text_result("finished")


def _ask(server: FullServer, call: FakeCall) -> Json | Steps:
    """Asks `n` times with this message, at once if it can; with `url` for a visit there.

    `method` and `params` are for other requests. `error` is the data of the error that demands a visit.
    """
    asked = call.arguments
    if "error" in asked:
        raise RpcError(URL_REQUIRED, "a visit is required", asked["error"])
    if "url" in asked:
        how = {"mode": "url", "url": asked["url"], "elicitationId": "1"}
    else:
        how = {"requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}
    method = asked.get("method", "elicitation/create")
    request = asked.get("params") or {"message": asked.get("message", "Your name?"), **how}
    requests = {f"ask-{number}": request for number in range(int(asked.get("n", 1)))}
    if not call.modern:
        return _ask_in_turn(call, method, list(requests.values()))
    if "inputResponses" in call.params:
        return call.text_result(json.dumps(list(call.params["inputResponses"].values())))
    wanted = {key: {"method": method, "params": each} for key, each in requests.items()}
    return {"resultType": "input_required", "inputRequests": wanted, "requestState": "asked"}


def _ask_in_turn(call: FakeCall, method: str, requests: list[Json]) -> Steps:
    answers = []
    for request in requests:
        response = yield ServerRequest(method, request)
        answers.append(response.get("result", response.get("error")))
    return call.text_result(json.dumps(answers))


_TOOLS: dict[str, Any] = {
    "ask": _ask,
    "log": _log,
    "touch": _touch,
    "change": _change,
    "hold": _hold,
    "odd": _odd,
    "declared": _declared,
    "start_task": _start_task,
    "finish_task": _finish_task,
}


class Toolbox:
    def definitions(self, server: FakeServer) -> list[Json]:
        own = [
            {"name": name, "description": run.__doc__, "inputSchema": {"type": "object"}}
            for name, run in _TOOLS.items()
        ]
        return [*tools.definitions(server), *own]

    def run(self, server: FakeServer, call: FakeCall) -> Json | Steps:
        name = call.params.get("name", "")
        run = _TOOLS.get(name)
        if run is None:
            return tools.run(server, call)
        server.stats.calls[name] = server.stats.calls.get(name, 0) + 1
        outcome: Json | Steps = run(server, call)
        return outcome


class FullHttp(FakeHttp):
    """The server on a socket of this process."""

    def __init__(self, era: str, transport: str = "http") -> None:
        super().__init__(era=era)
        self.server: FullServer = FullServer(era)
        self.endpoint = ENDPOINT_BY_TRANSPORT[transport](self.server, ActiveFaults(HTTP_FAULTS, ()), "json")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--era", default="both")
    StdioServer(FullServer(parser.parse_args().era), ActiveFaults(PIPE_MODES, [])).run()
    os._exit(0)  # threads that still wait have no client left


if __name__ == "__main__":
    main()
