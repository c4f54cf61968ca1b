"""Import of Arazzo documents (1.0, 1.1): descriptions of API workflows become workflow files.

An operation becomes a call of the tool with its `operationId`, on the server that was made from the same OpenAPI
document. The new files have what Arazzo lacks: effects, a journal, and a question to a person if an outcome is unknown.
Parts that have no equivalent (jumps with `goto`, AsyncAPI channels, JSONPath criteria) are reported; nothing is
guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from toolway.errors import ConfigError
from toolway.types import Json
from toolway.workflows.reader import FORMAT, parse_yaml, read_value

_VERSION: Final = re.compile(r"1\.[01]\.\d+")
_EXPRESSION: Final = re.compile(
    r"\$(?:inputs|steps|response|statusCode|workflows|outputs|sourceDescriptions)[\w.\-]*(?:#/[\w/~.\-]*)?"
)
_EMBEDDED: Final = re.compile(r"\{(\$[^{}]+)\}")
_STATUS: Final = re.compile(
    r"\s*\$statusCode\s*(?:==\s*2\d\d|>=\s*200|<\s*[34]00)\s*(?:&&\s*\$statusCode\s*<\s*[34]00\s*)?"
)
_NAME: Final = re.compile(r"[A-Za-z_]\w*")


class ImportedWorkflow(NamedTuple):
    """Workflow file made from an Arazzo workflow, with the places that a person should check."""

    name: str
    body: Json
    notes: tuple[str, ...]


def import_arazzo(text: str, servers: Mapping[str, str], *, file: str = "") -> list[ImportedWorkflow]:
    """Return a workflow for each workflow of an Arazzo document.

    Args:
        text: The document, YAML or JSON.
        servers: Name of the server for each source description; a missing one has the name of its source.
        file: Name of the document for errors.

    Raises:
        ConfigError: The document is not Arazzo, or has a part that workflows cannot express.
    """
    document = parse_yaml(text, file)
    version = document.get("arazzo") if isinstance(document, dict) else None
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise _error(file, "this is not an Arazzo document", f"arazzo: {version!r}", "Arazzo 1.0 and 1.1 are known")
    found = [_Importer(document, each, servers, file).run() for each in _list(document.get("workflows"))]
    for each in found:
        read_value(each.body, name=each.name)  # an invalid one is an error here, not in the first run
    return found


class _Importer:
    def __init__(self, document: Json, workflow: Json, servers: Mapping[str, str], file: str) -> None:
        self._document = document
        self._workflow = workflow
        self._servers = servers
        self._file = file
        self._notes: list[str] = []
        self._outputs: dict[str, dict[str, str]] = {}  # expressions of the outputs of steps, by step
        self._name = _identifier(str(workflow.get("workflowId", "workflow")))

    def run(self) -> ImportedWorkflow:
        steps: list[Json] = []
        for step in _list(self._workflow.get("steps")):
            steps += self._step(step)
        body: Json = {"toolway": FORMAT, "name": self._name}
        description = self._workflow.get("summary") or self._workflow.get("description")
        if description:
            body["description"] = str(description)
        if isinstance(self._workflow.get("inputs"), dict):
            body["inputs"] = self._workflow["inputs"]
        if self._workflow.get("dependsOn"):
            self._notes.append(f"run first: {', '.join(map(str, _list(self._workflow['dependsOn'])))}")
        body["steps"] = steps
        if self._workflow.get("outputs"):
            body["outputs"] = {name: self._value(value, "") for name, value in self._workflow["outputs"].items()}
        return ImportedWorkflow(self._name, body, tuple(self._notes))

    # -- steps

    def _step(self, step: Json) -> list[Json]:
        name = _identifier(str(step.get("stepId", "")))
        made: Json = {"name": name}
        if step.get("description"):
            made["description"] = str(step["description"])
        if "workflowId" in step:
            made["workflow"] = self._child(str(step["workflowId"]))
            made["params"] = self._parameters(step, name)
        elif "operationId" in step:
            made["tool"] = self._tool(str(step["operationId"]))
            made["params"] = self._parameters(step, name)
        else:
            raise self._refuse(step, "the step has no operationId", "give the operation an operationId")
        self._outputs[name] = {
            key: self._expression(str(value), name) for key, value in (step.get("outputs") or {}).items()
        }
        if "timeout" in step and "tool" in made:
            made["timeout"] = float(step["timeout"]) / 1000
        self._add_failure_actions(step, made)
        return [made, *self._criteria(step, name), *self._success_actions(step, name)]

    def _tool(self, operation: str) -> str:
        reference = re.fullmatch(r"\$sourceDescriptions\.([\w-]+)\.(.+)", operation)
        sources = [str(each.get("name")) for each in _list(self._document.get("sourceDescriptions"))]
        source, tool = (reference[1], reference[2]) if reference else ("", operation)
        if not reference:
            if len(sources) != 1:
                raise self._refuse({"stepId": operation}, "the source of the operation is not clear", "name its source")
            source = sources[0]
        return f"{self._servers.get(source, source)}.{tool}"

    def _child(self, id: str) -> Json:
        for each in _list(self._document.get("workflows")):
            if each.get("workflowId") == id and each is not self._workflow:
                child = _Importer(self._document, each, self._servers, self._file).run()
                self._notes += child.notes
                return child.body
        raise self._refuse({"stepId": id}, f"there is no workflow {id} in this document", "import its document too")

    def _parameters(self, step: Json, name: str) -> Json:
        params: Json = {}
        for raw in (*_list(self._workflow.get("parameters")), *_list(step.get("parameters"))):
            parameter = self._resolve(raw)
            params[str(parameter["name"])] = self._value(parameter.get("value"), name)
        body = step.get("requestBody")
        if isinstance(body, dict) and "payload" in body:
            if body.get("replacements"):
                raise self._refuse(step, "replacements in a request body cannot be imported", "write the whole payload")
            params["body"] = self._value(body["payload"], name)
        return params

    def _criteria(self, step: Json, name: str) -> list[Json]:
        """Return workflow steps that make the run fail if a success criterion of an Arazzo step is not met.

        A criterion on the status code needs no step, because another status is a failure of the tool.
        """
        conditions = []
        for criterion in _list(step.get("successCriteria")):
            if criterion.get("type", "simple") != "simple":
                raise self._refuse(step, f"a criterion of type {criterion['type']} cannot be imported", "use simple")
            text = str(criterion.get("condition", ""))
            if _STATUS.fullmatch(text):
                continue  # another status is a failure of the tool
            conditions.append(self._condition(text, name, step))
        if not conditions:
            return []
        whole = " && ".join(f"({each})" for each in conditions)
        failure = {"name": f"{name}_failed", "fail": f"{name} does not meet: {whole}".replace("${", "$ {")}
        return [{"name": f"{name}_criteria", "switch": [{"if": f"!({whole})", "steps": [failure]}]}]

    def _success_actions(self, step: Json, name: str) -> list[Json]:
        made: list[Json] = []
        for number, raw in enumerate(_list(step.get("onSuccess"))):
            action = self._resolve(raw)
            if action.get("type") != "end":
                raise self._refuse(step, "goto cannot be imported", "put the steps in order")
            conditions = [self._condition(str(each["condition"]), name, step) for each in _list(action.get("criteria"))]
            ending = {"name": f"{name}_end_{number + 1}", "end": None}
            condition = " && ".join(conditions) or "true"
            made.append({"name": f"{name}_success_{number + 1}", "switch": [{"if": condition, "steps": [ending]}]})
        return made

    def _add_failure_actions(self, step: Json, made: Json) -> None:
        for raw in (*_list(step.get("onFailure")), *_list(self._workflow.get("failureActions"))):
            action = self._resolve(raw)
            if action.get("type") == "retry" and "tool" in made:
                tries = int(action.get("retryLimit", 1)) + 1
                made["retry"] = {"tries": tries, "wait": float(action.get("retryAfter", 1)), "on": ["answer"]}
                self._notes.append(f"{made['name']}: an unsafe call is retried only with repeatable: true")
            elif action.get("type") == "end":
                made["catch"] = [{"then": "end"}]
            else:
                raise self._refuse(step, f"the action {action.get('type')} cannot be imported", "use retry or end")

    def _resolve(self, value: Json) -> Json:
        """Return the object that `value` refers to, such as `$components.parameters.x`; else `value` itself."""
        reference = value.get("reference")
        if reference is None:
            return value
        found: Any = self._document
        for part in str(reference).removeprefix("$").split("."):
            found = found.get(part) if isinstance(found, dict) else None
        if not isinstance(found, dict):
            raise self._refuse({"stepId": str(reference)}, "the reference is not known", "add it to components")
        return {**found, **({"value": value["value"]} if "value" in value else {})}

    # -- expressions

    def _value(self, value: Any, step: str) -> Any:
        """Return a value of an Arazzo document with its expressions converted to `${…}` expressions of a workflow."""
        if isinstance(value, dict):
            return {key: self._value(each, step) for key, each in value.items()}
        if isinstance(value, list):
            return [self._value(each, step) for each in value]
        if not isinstance(value, str):
            return value
        if _EXPRESSION.fullmatch(value):
            return "${" + self._expression(value, step) + "}"
        return _EMBEDDED.sub(lambda match: "${" + self._expression(match[1], step) + "}", value)

    def _condition(self, text: str, name: str, step: Json) -> str:
        if "$statusCode" in text:
            raise self._refuse(step, "a status other than 2xx cannot be a criterion", "a tool reports it as a failure")
        return _EXPRESSION.sub(lambda match: self._expression(match[0], name), text)

    def _expression(self, text: str, step: str) -> str:
        path, _, pointer = text.partition("#")
        parts = path.removeprefix("$").split(".")
        if parts[0] == "inputs":
            return _access("inputs", parts[1:]) + _pointer(pointer)
        if parts[0] == "response" and len(parts) > 1 and parts[1] == "body":
            return f"steps.{step}.data" + _pointer(pointer)
        if parts[0] == "steps" and len(parts) > 3 and parts[2] == "outputs":
            known = self._outputs.get(_identifier(parts[1]), {}).get(parts[3])
            if known is not None:
                return _access(known, parts[4:]) + _pointer(pointer)
        raise self._refuse({"stepId": step}, f"the expression {text} cannot be imported", "use inputs and outputs")

    def _refuse(self, step: Json, message: str, hint: str) -> ConfigError:
        return _error(self._file, message, f"in {self._name}, at {step.get('stepId', '')}", hint)


def _error(file: str, message: str, detail: str, hint: str) -> ConfigError:
    return ConfigError(message, file=file, detail=detail, hint=hint, code="E-WORKFLOW-FILE")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _identifier(name: str) -> str:
    found = re.sub(r"\W", "_", name)[:64] or "step"
    return found if not found[:1].isdigit() else f"_{found}"[:64]


def _access(start: str, names: list[str]) -> str:
    """Return a workflow expression that reads nested members of a value, by name or by index."""
    for name in names:
        if name.isdigit():
            start += f"[{name}]"
        else:
            start += f".{name}" if _NAME.fullmatch(name) else f"[{msgspec.json.encode(name).decode()}]"
    return start


def _pointer(pointer: str) -> str:
    parts = [each.replace("~1", "/").replace("~0", "~") for each in pointer.split("/")[1:]] if pointer else []
    return _access("", parts)
