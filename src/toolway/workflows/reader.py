"""Reader of workflow files: parses YAML or JSON and returns a checked `Definition`.

Every error names the file, the line and the key. The format is described in `schema.json`, for editors, and in
docs/workflows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal, cast

import jsonschema_rs
import msgspec
import yaml  # type: ignore[import-untyped]

from toolway.config.agent_settings import AgentSettings, Budget, read_agent_settings
from toolway.config.approval.workflow_files import MAX_FILE_BYTES, CapturedWorkflow, child_path
from toolway.errors import ConfigError
from toolway.types import Effect, Json
from toolway.workflows.definition import (
    AgentStep,
    AskStep,
    Case,
    Catch,
    ChildStep,
    Definition,
    EndStep,
    ForeachStep,
    ParallelStep,
    RepeatStep,
    Retry,
    SetStep,
    Step,
    SwitchStep,
    ToolStep,
    Undo,
    UnknownPolicy,
    Verify,
    WaitStep,
    read_duration,
)
from toolway.workflows.expressions import ExpressionError, Expressions, codes_in
from toolway.workflows.journal import definition_hash
from toolway.workflows.schedule import MIN_INTERVAL_S, Schedule

MAX_STEPS: Final = 1000
MAX_NODES: Final = 100_000  # values of a YAML file, counted after aliases are followed
MAX_ITEMS: Final = 10_000  # of a foreach
MAX_DEPTH: Final = 5  # of child workflows
FORMAT: Final = "workflow/1"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")

#: Names that every expression may use.
BASE_VARIABLES: Final = frozenset(
    ("inputs", "input", "variables", "repo", "steps", "run", "item", "index", "reply", "error")
)
_COMMON: Final = ("name", "if", "condition", "catch", "description")
_KINDS: Final[Mapping[str, tuple[str, ...]]] = {  # the key that names the kind of a step, and its other keys
    "tool": ("params", "assign", "effect", "repeatable", "key", "timeout", "retry", "on_unknown", "undo"),
    "foreach": ("steps", "at_once", "keep_going"),
    "parallel": (),
    "switch": (),
    "repeat": (),
    "wait": (),
    "until": (),
    "approve": (),
    "ask": (),
    "workflow": ("params", "assign"),
    "agent": ("assign",),
    "set": (),
    "end": (),
    "fail": (),
}
_TOP_KEYS: Final = (
    "toolway",
    "name",
    "description",
    "inputs",
    "timeout",
    "on_failure",
    "schedule",
    "budget",
    "steps",
    "outputs",
    "config",
)


def read_file(path: Path) -> Definition:
    """Read a workflow file. Raises `ConfigError` if it cannot be read or is invalid."""
    return read_text(read_source(path), name=path.stem, file=str(path))


def read_source(path: Path) -> str:
    """Return the text of a file. Raises `ConfigError` if it cannot be read."""
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError as exc:
        raise _unreadable(str(path), str(exc)) from exc


def _unreadable(file: str, detail: str) -> ConfigError:
    message = f"the workflow file {file} cannot be read"
    return ConfigError(message, file=file, detail=detail, code="E-WORKFLOW-FILE")


def read_captured(workflow: CapturedWorkflow) -> Definition:
    """Return the definition of a workflow from the contents that were read with the configuration.

    No file is opened: what runs is what was approved. Raises `ConfigError` if the workflow is invalid.
    """
    if workflow.body is not None:
        return read_value(workflow.body)
    if workflow.problem:
        raise _unreadable(workflow.file, workflow.problem)
    text = workflow.contents[workflow.file].decode("utf-8", "replace")
    return read_text(text, name=Path(workflow.file).stem, file=workflow.file, contents=workflow.contents)


def read_text(
    text: str,
    *,
    name: str = "workflow",
    file: str = "",
    depth: int = 0,
    contents: Mapping[str, bytes] | None = None,
) -> Definition:
    """Return the workflow definition in a YAML or JSON text.

    `contents` holds the files of child workflows, by path; without it they are read.
    """
    if len(text) > MAX_FILE_BYTES:
        raise ConfigError("the workflow file is too large", file=file, code="E-WORKFLOW-FILE")
    value, lines = _parse_yaml(text, file)
    return _Reader(file, lines, text, depth, contents).read(value, name)


def read_value(value: Mapping[str, Any], *, name: str = "workflow") -> Definition:
    """Return the workflow definition that a dictionary describes."""
    return _Reader("", {}, "").read(dict(value), name)


def read_definition(workflow: str | os.PathLike[str] | Mapping[str, Any] | Definition) -> Definition:
    """Return the workflow definition of a file or a dictionary. A `Definition` is returned as it is."""
    if isinstance(workflow, Definition):
        return workflow
    return read_value(workflow) if isinstance(workflow, Mapping) else read_file(Path(workflow))


_Location = tuple[str | int, ...]


class _Reader:
    def __init__(
        self,
        file: str,
        lines: Mapping[_Location, int],
        text: str,
        depth: int = 0,
        contents: Mapping[str, bytes] | None = None,
    ) -> None:
        self._file = file
        self._contents = contents  # of child workflows' files, by path; None: they are read
        self._depth = depth  # of child workflows
        self._lines = lines
        self._source_text = text
        self._names: dict[str, int] = {}
        self._count = 0
        self._assigned: set[str] = set()
        self._default_tries = 3
        self._continues = False  # a failed step does not stop the run

    def read(self, value: Any, default_name: str) -> Definition:
        body = self._mapping(value, ())
        self._check_keys(body, _TOP_KEYS, ())
        if body.get("toolway", FORMAT) != FORMAT:
            raise self._error(("toolway",), "unknown format", f"set toolway: {FORMAT}")
        config = self._mapping(body.get("config") or {}, ("config",))
        self._check_keys(config, ("timeoutMs", "maxRetries", "continueOnError"), ("config",))
        if "maxRetries" in config:
            self._default_tries = 1 + int(self._number(config["maxRetries"], ("config", "maxRetries"), 0, 99))
        self._continues = self._flag(config, "continueOnError", ("config",))
        steps = self._steps(body.get("steps"), ("steps",))
        timeout = body.get("timeout")
        if timeout is None and "timeoutMs" in config:
            timeout = self._number(config["timeoutMs"], ("config", "timeoutMs"), 1, 1e12) / 1000
        on_failure = self._choice(body.get("on_failure", "stop"), ("on_failure",), ("stop", "undo"))
        name = re.sub(r"\W", "_", str(body.get("name") or default_name))[:64]
        definition = Definition(
            name=name if not name[:1].isdigit() else f"_{name}",
            description=str(body.get("description") or ""),
            inputs=self._schema(body.get("inputs"), ("inputs",)),
            timeout=self._seconds(timeout, ("timeout",)) if timeout is not None else None,
            undo_on_failure=on_failure == "undo",
            schedule=self._schedule(body.get("schedule")),
            budget=self._budget(body.get("budget")),
            steps=steps,
            outputs=body.get("outputs"),
            body=body,
            hash=definition_hash(body),
        )
        self._mark_prompts(definition)
        self._check_expressions(definition)
        return definition

    def _budget(self, value: Any) -> Budget | None:
        """Parse the budget of all agent steps together: a text such as `2usd,200calls`, or limits by unit."""
        if value is None:
            return None
        hint = "use budget: 2usd,100requests"
        try:
            if isinstance(value, str):
                return Budget.parse(value, requests=None)
            return msgspec.convert({"requests": None, **self._mapping(value, ("budget",))}, Budget)
        except (ConfigError, msgspec.ValidationError) as exc:
            raise self._error(("budget",), f"the budget is not valid: {exc}"[:300], hint) from exc

    def _schedule(self, value: Any) -> Schedule | None:
        if value is None:
            return None
        at = ("schedule",)
        found = self._mapping(value, at)
        self._check_keys(found, ("every", "cron", "timezone", "inputs"), at)
        if ("every" in found) == ("cron" in found):
            raise self._error(at, "a schedule needs every or cron", 'use every: 1h, or cron: "0 8 * * 1-5"')
        every = self._seconds(found["every"], (*at, "every")) if "every" in found else None
        if every is not None and every < MIN_INTERVAL_S:
            raise self._error((*at, "every"), "the interval is too short", f"use at least {MIN_INTERVAL_S:g}s")
        schedule = Schedule(
            every=every,
            cron=self._text(found["cron"], (*at, "cron")) if "cron" in found else None,
            timezone=self._text(found.get("timezone", "UTC"), (*at, "timezone")),
            inputs=self._mapping(found.get("inputs", {}), (*at, "inputs")),
        )
        try:
            schedule.next_time(0.0)
        except ValueError as exc:
            raise self._error(at, str(exc), 'use five fields, for example cron: "0 8 * * 1-5"') from exc
        return schedule

    # -- steps

    def _steps(self, value: Any, at: _Location) -> tuple[Step, ...]:
        if not isinstance(value, list) or not value:
            raise self._error(at, "a list of steps is missing", "add steps: followed by at least one step")
        return tuple(self._step(each, (*at, number)) for number, each in enumerate(value))

    def _step(self, value: Any, at: _Location) -> Step:
        self._count += 1
        if self._count > MAX_STEPS:
            raise self._error(at, f"a workflow has at most {MAX_STEPS} steps", "start a second workflow")
        step = self._mapping(value, at)
        kinds = [kind for kind in _KINDS if kind in step and not (kind == "until" and "repeat" in step)]
        if len(kinds) != 1:
            found = f"this one has {' and '.join(kinds)}" if kinds else f"use one of {', '.join(_KINDS)}"
            raise self._error(at, "a step has exactly one kind", found)
        kind = kinds[0]
        self._check_keys(step, (*_COMMON, kind, *_KINDS[kind]), at)
        common: dict[str, Any] = {
            "name": self._step_name(step, kind, at),
            "condition": self._condition(step, at),
            "catch": tuple(
                self._catch(each, (*at, "catch", number))
                for number, each in enumerate(self._list(step.get("catch", []), (*at, "catch")))
            ),
        }
        if self._continues:
            common["catch"] = (*common["catch"], Catch())
        build = cast(Any, getattr(self, f"_read_{kind}"))
        return cast(Step, build(step, at, common))

    def _step_name(self, step: Json, kind: str, at: _Location) -> str:
        name = step.get("name")
        if name is None:
            stem = re.sub(r"\W", "_", str(step.get("tool", "")).rpartition(".")[2]) or kind
            number = self._names[stem] = self._names.get(stem, 0) + 1
            return stem if number == 1 else f"{stem}_{number}"
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise self._error((*at, "name"), "the name of a step is not valid", "use letters, digits and _")
        if name in self._names:
            raise self._error((*at, "name"), f"two steps are named {name}", "use a different name for each step")
        self._names[name] = 1
        return name

    def _condition(self, step: Json, at: _Location) -> str | None:
        condition = step.get("if", step.get("condition"))
        if condition is None:
            return None
        if isinstance(condition, bool):
            return "true" if condition else "false"
        text = self._text(condition, (*at, "if"))
        whole = re.fullmatch(r"\s*\$\{(.*)\}\s*", text, re.DOTALL)
        return whole[1] if whole else text

    def _read_tool(self, step: Json, at: _Location, common: Json) -> Step:
        effect = step.get("effect")
        key = self._choice(step.get("key", "none"), (*at, "key"), ("none", "honored"))
        return ToolStep(
            **common,
            tool=self._text(step["tool"], (*at, "tool")),
            params=self._mapping(step.get("params") or {}, (*at, "params")),
            assign=self._variable(step.get("assign"), at),
            effect=Effect(self._choice(effect, (*at, "effect"), tuple(Effect))) if effect is not None else None,
            repeatable=self._flag(step, "repeatable", at),
            key_honored=key == "honored",
            timeout=self._seconds(step["timeout"], (*at, "timeout")) if "timeout" in step else None,
            retry=self._retry(step.get("retry"), (*at, "retry")),
            on_unknown=self._on_unknown(step.get("on_unknown", "ask"), (*at, "on_unknown")),
            undo=self._undo(step.get("undo"), (*at, "undo")),
        )

    def _retry(self, value: Any, at: _Location) -> Retry:
        if value is None:
            return Retry(tries=self._default_tries)
        if value is False:
            return Retry(tries=1)
        retry = self._mapping(value, at)
        self._check_keys(retry, ("tries", "wait", "factor", "at_most", "on"), at)
        causes = [
            self._choice(each, (*at, "on"), ("answer", "unreachable"))
            for each in self._list(retry.get("on", []), (*at, "on"))
        ]
        return Retry(
            tries=int(self._number(retry.get("tries", 3), (*at, "tries"), 1, 100)),
            wait=self._seconds(retry.get("wait", 5), (*at, "wait")),
            factor=self._number(retry.get("factor", 2), (*at, "factor"), 1, 10),
            at_most=self._seconds(retry.get("at_most", 300), (*at, "at_most")),
            on_answer="answer" in causes,
        )

    def _on_unknown(self, value: Any, at: _Location) -> UnknownPolicy | Verify:
        if not isinstance(value, dict):
            return cast(UnknownPolicy, self._choice(value, at, ("ask", "fail", "retry")))
        self._check_keys(value, ("verify", "otherwise"), at)
        verify = self._mapping(value.get("verify"), (*at, "verify"))
        self._check_keys(verify, ("tool", "params", "happened", "result", "after"), (*at, "verify"))
        otherwise = self._choice(value.get("otherwise", "ask"), (*at, "otherwise"), ("ask", "fail", "retry"))
        return Verify(
            tool=self._text(verify.get("tool"), (*at, "verify", "tool")),
            params=self._mapping(verify.get("params") or {}, (*at, "verify", "params")),
            happened=self._text(verify.get("happened"), (*at, "verify", "happened")),
            result=self._text(verify["result"], (*at, "verify", "result")) if "result" in verify else None,
            after=self._seconds(verify["after"], (*at, "verify", "after")) if "after" in verify else None,
            otherwise=cast(UnknownPolicy, otherwise),
        )

    def _undo(self, value: Any, at: _Location) -> Undo | None:
        if value is None:
            return None
        undo = self._mapping(value, at)
        self._check_keys(undo, ("tool", "params"), at)
        return Undo(self._text(undo.get("tool"), (*at, "tool")), self._mapping(undo.get("params") or {}, at))

    def _read_foreach(self, step: Json, at: _Location, common: Json) -> Step:
        return ForeachStep(
            **common,
            items=self._text(step["foreach"], (*at, "foreach")),
            steps=self._steps(step.get("steps"), (*at, "steps")),
            at_once=int(self._number(step.get("at_once", 1), (*at, "at_once"), 1, 1000)),
            keep_going=self._flag(step, "keep_going", at),
        )

    def _read_parallel(self, step: Json, at: _Location, common: Json) -> Step:
        branches = self._mapping(step["parallel"], (*at, "parallel"))
        for name in branches:
            if not _NAME.fullmatch(name):
                raise self._error((*at, "parallel", name), "the name of a branch is not valid", "use letters and _")
        return ParallelStep(
            **common,
            branches=tuple((name, self._steps(each, (*at, "parallel", name))) for name, each in branches.items()),
        )

    def _read_switch(self, step: Json, at: _Location, common: Json) -> Step:
        cases = []
        for number, each in enumerate(self._list(step["switch"], (*at, "switch"))):
            where = (*at, "switch", number)
            case = self._mapping(each, where)
            self._check_keys(case, ("if", "steps"), where)
            cases.append(Case(condition=self._condition(case, where), steps=self._steps(case.get("steps"), where)))
        return SwitchStep(**common, cases=tuple(cases))

    def _read_repeat(self, step: Json, at: _Location, common: Json) -> Step:
        where = (*at, "repeat")
        repeat = self._mapping(step["repeat"], where)
        self._check_keys(repeat, ("until", "every", "at_most", "steps"), where)
        return RepeatStep(
            **common,
            until=self._text(repeat.get("until"), (*where, "until")),
            every=self._seconds(repeat.get("every", 10), (*where, "every")),
            at_most=int(self._number(repeat.get("at_most", 100), (*where, "at_most"), 1, MAX_ITEMS)),
            steps=self._steps(repeat.get("steps"), (*where, "steps")),
        )

    def _read_wait(self, step: Json, at: _Location, common: Json) -> Step:
        return WaitStep(**common, seconds=self._seconds(step["wait"], (*at, "wait")))

    def _read_until(self, step: Json, at: _Location, common: Json) -> Step:
        text = self._text(step["until"], (*at, "until"))
        whole = re.fullmatch(r"\s*\$\{(.*)\}\s*", text, re.DOTALL)
        return WaitStep(**common, until=whole[1] if whole else msgspec.json.encode(text).decode())

    def _read_approve(self, step: Json, at: _Location, common: Json) -> Step:
        return self._question(step["approve"], (*at, "approve"), common, approval=True)

    def _read_ask(self, step: Json, at: _Location, common: Json) -> Step:
        return self._question(step["ask"], (*at, "ask"), common, approval=False)

    def _question(self, value: Any, at: _Location, common: Json, *, approval: bool) -> Step:
        question = {"title": value} if isinstance(value, str) else self._mapping(value, at)
        self._check_keys(question, ("title", "form", "who", "not_by", "within"), at)
        not_by = question.get("not_by")
        if not_by is not None:
            self._choice(not_by, (*at, "not_by"), ("starter",))
        return AskStep(
            **common,
            title=self._text(question.get("title"), (*at, "title")),
            approval=approval,
            form=self._schema(question.get("form"), (*at, "form")),
            who=tuple(self._text(each, (*at, "who")) for each in self._list(question.get("who", []), (*at, "who"))),
            not_by_starter=not_by == "starter",
            within=self._seconds(question["within"], (*at, "within")) if "within" in question else None,
        )

    def _read_workflow(self, step: Json, at: _Location, common: Json) -> Step:
        value = step["workflow"]
        if self._depth >= MAX_DEPTH:
            raise self._error(at, f"workflows are nested more than {MAX_DEPTH} deep", "a workflow cannot start itself")
        if isinstance(value, str):
            if not self._file:
                raise self._error(at, "a child workflow in a file needs a parent in a file", "put its steps here")
            path = child_path(self._file, value)
            text = self._child_text(path)
            child = read_text(text, name=Path(path).stem, file=path, depth=self._depth + 1, contents=self._contents)
        else:
            body = self._mapping(value, (*at, "workflow"))
            child = _Reader(self._file, {}, "", self._depth + 1, self._contents).read(body, common["name"])
        step["workflow"] = {**child.body, "name": child.name}  # a run keeps the text of its children
        params = self._mapping(step.get("params") or {}, (*at, "params"))
        return ChildStep(**common, workflow=child, params=params, assign=self._variable(step.get("assign"), at))

    def _child_text(self, path: str) -> str:
        if self._contents is None:
            return read_source(Path(path))
        if path not in self._contents:
            raise _unreadable(path, "it was not there when the configuration was read, or there are too many files")
        return self._contents[path].decode("utf-8", "replace")

    def _read_agent(self, step: Json, at: _Location, common: Json) -> Step:
        where = (*at, "agent")
        agent = dict(self._mapping(step["agent"], where))
        prompt = self._text(agent.pop("prompt", None), (*where, "prompt"))
        self._check_keys(
            agent, ("prompt", *(each for each in AgentSettings.__struct_fields__ if each != "has_read")), where
        )
        self._schema(agent.get("output"), (*where, "output"))
        try:
            settings = read_agent_settings(agent)
        except ConfigError as exc:
            raise self._error(where, f"{exc.message}: {exc.detail}" if exc.detail else exc.message, exc.hint) from exc
        params: Json = {"prompt": prompt, "settings": msgspec.to_builtins(settings)}
        return AgentStep(**common, params=params, settings=settings, assign=self._variable(step.get("assign"), at))

    def _mark_prompts(self, definition: Definition) -> None:
        """Store in each agent step which tools' results its prompt may contain: those of all other steps."""
        for step in definition.walk():
            if isinstance(step, AgentStep):
                step.params["settings"]["has_read"] = sorted(definition.tools_beside(step))

    def _variable(self, name: Any, at: _Location) -> str | None:
        """Check and return the name of the variable that gets the data of a step. None if the step sets no variable."""
        if name is None:
            return None
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in BASE_VARIABLES:
            raise self._error((*at, "assign"), f"{name!r} cannot be a variable", "use letters, digits and _")
        self._assigned.add(name)
        return name

    def _read_set(self, step: Json, at: _Location, common: Json) -> Step:
        values = self._mapping(step["set"], (*at, "set"))
        for name in values:
            if not _NAME.fullmatch(name) or name in BASE_VARIABLES:
                raise self._error((*at, "set", name), f"{name!r} cannot be a variable", "use letters, digits and _")
        self._assigned.update(values)
        return SetStep(**common, values=values)

    def _read_end(self, step: Json, at: _Location, common: Json) -> Step:
        return EndStep(**common, output=step["end"])

    def _read_fail(self, step: Json, at: _Location, common: Json) -> Step:
        return EndStep(**common, failure=self._text(step["fail"], (*at, "fail")))

    def _catch(self, value: Any, at: _Location) -> Catch:
        handler = self._mapping(value, at)
        self._check_keys(handler, ("if", "unknown", "steps", "then"), at)
        then = self._choice(handler.get("then", "continue"), (*at, "then"), ("continue", "fail", "end"))
        return Catch(
            condition=self._condition(handler, at),
            unknown=self._flag(handler, "unknown", at),
            steps=self._steps(handler["steps"], (*at, "steps")) if "steps" in handler else (),
            then=cast(Literal["continue", "fail", "end"], then),
        )

    # -- expressions

    def _check_expressions(self, definition: Definition) -> None:
        """Compile every expression of a workflow, so a mistake is reported before the first run."""
        expressions = expressions_of(definition)
        code = ""
        try:
            for step in definition.walk():
                for code in _codes_of(step):
                    expressions.compile(code)
                for template in _templates_of(step):
                    for code in codes_in(template):
                        expressions.compile(code)
            for code in codes_in(definition.outputs):
                expressions.compile(code)
        except ExpressionError as exc:
            found = self._source_text.find(code)
            raise ConfigError(
                exc.message,
                file=self._file,
                line=self._source_text.count("\n", 0, found) + 1 if code and found >= 0 else None,
                detail=exc.detail,
                hint=exc.hint or "see docs/workflows for the names you can use in expressions",
                code=exc.code,
            ) from exc

    # -- values

    def _mapping(self, value: Any, at: _Location) -> Json:
        if not isinstance(value, dict):
            raise self._error(at, f"{_name_of(at)} is not a mapping", "use keys and values")
        return value

    def _list(self, value: Any, at: _Location) -> list[Any]:
        if not isinstance(value, list):
            raise self._error(at, f"{_name_of(at)} is not a list", "write [a, b]")
        return value

    def _text(self, value: Any, at: _Location) -> str:
        if not isinstance(value, str) or not value.strip():
            raise self._error(at, f"{_name_of(at)} is missing or is not a string", f"write {at[-1]}: …")
        return value

    def _flag(self, step: Json, key: str, at: _Location) -> bool:
        value = step.get(key, False)
        if not isinstance(value, bool):
            raise self._error((*at, key), f"{key} is not true or false", f"write {key}: true")
        return value

    def _choice(self, value: Any, at: _Location, allowed: Iterable[str]) -> str:
        names = [str(each) for each in allowed]
        if value not in names:
            close = get_close_matches(str(value), names, n=1)
            hint = f"did you mean {close[0]}?" if close else f"use {' or '.join(names)}"
            raise self._error(at, f"{_name_of(at)} cannot be {value!r}", hint)
        return str(value)

    def _number(self, value: Any, at: _Location, least: float, most: float) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise self._error(at, f"{_name_of(at)} is not a number from {least:g} to {most:g}", f"it is {value!r}")
        return value

    def _seconds(self, value: Any, at: _Location) -> float:
        seconds = read_duration(value)
        if seconds is None:
            raise self._error(at, f"{_name_of(at)} is not a duration", "use 30s, 10m, 2h or 7d")
        return seconds

    def _schema(self, value: Any, at: _Location) -> Json | None:
        if value is None:
            return None
        schema = self._mapping(value, at)
        if "$ref" in msgspec.json.encode(schema).decode():
            raise self._error(at, "a schema in a workflow cannot use $ref", "put the schema here in full")

        try:
            jsonschema_rs.validator_for(schema)
        except (ValueError, jsonschema_rs.ValidationError) as exc:
            raise self._error(at, f"{_name_of(at)} is not a JSON Schema", str(exc)[:200]) from exc
        return schema

    def _check_keys(self, value: Json, known: Iterable[str], at: _Location) -> None:
        for key in value:
            if key not in known:
                close = get_close_matches(str(key), list(known), n=1)
                hint = f"did you mean {close[0]}?" if close else f"keys here: {', '.join(known)}"
                raise self._error((*at, key), f"the key {key!r} is not known", hint)

    def _error(self, at: _Location, message: str, hint: str) -> ConfigError:
        where = at
        while where and where not in self._lines:
            where = where[:-1]
        return ConfigError(
            message,
            file=self._file,
            line=self._lines.get(where),
            detail=f"at {'.'.join(str(each) for each in at)}" if at else "",
            hint=hint,
            code="E-WORKFLOW-FILE",
        )


def expressions_of(definition: Definition) -> Expressions:
    """Return an evaluator for the expressions of a workflow, with the names of the variables that its steps set."""
    names = set(BASE_VARIABLES)
    for step in definition.walk():
        if isinstance(step, ToolStep | ChildStep) and step.assign:
            names.add(step.assign)
        elif isinstance(step, SetStep):
            names.update(step.values)
    return Expressions(frozenset(names))


def _codes_of(step: Step) -> list[str]:
    codes = [step.condition, *(handler.condition for handler in step.catch)]
    if isinstance(step, ForeachStep):
        codes.append(step.items)
    elif isinstance(step, RepeatStep | WaitStep):
        codes.append(step.until)
    elif isinstance(step, SwitchStep):
        codes.extend(case.condition for case in step.cases)
    elif isinstance(step, ToolStep) and isinstance(step.on_unknown, Verify):
        codes.extend((step.on_unknown.happened, step.on_unknown.result))
    return [code for code in codes if code is not None]


def _templates_of(step: Step) -> list[Any]:
    if isinstance(step, ToolStep):
        extra = [step.on_unknown.params] if isinstance(step.on_unknown, Verify) else []
        return [step.params, *extra, *([step.undo.params] if step.undo is not None else [])]
    if isinstance(step, ChildStep):
        return [step.params]
    if isinstance(step, AskStep):
        return [step.title]
    if isinstance(step, SetStep):
        return [step.values]
    return [step.output, step.failure] if isinstance(step, EndStep) else []


def parse_yaml(text: str, file: str) -> Any:
    """Return the value of a YAML or JSON text. Raises `ConfigError` if it is neither, or too large."""
    if len(text) > MAX_FILE_BYTES:
        raise ConfigError("the file is too large", file=file, code="E-WORKFLOW-FILE")
    return _parse_yaml(text, file)[0]


def _name_of(at: _Location) -> str:
    return str(at[-1]) if at else "the workflow"


def _parse_yaml(text: str, file: str) -> tuple[Any, dict[_Location, int]]:
    """Parse YAML, of which JSON is a part. Return the value and the line of each key and item."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    lines: dict[_Location, int] = {}
    nodes = 0

    def build(node: Any, at: _Location) -> Any:
        nonlocal nodes
        nodes += 1
        if nodes > MAX_NODES or len(at) > 60:
            raise ConfigError("the workflow file has too many values", file=file, code="E-WORKFLOW-FILE")
        lines[at] = node.start_mark.line + 1
        if isinstance(node, yaml.MappingNode):
            found: dict[str, Any] = {}
            for key_node, value_node in node.value:
                key = loader.construct_object(key_node, deep=True)
                if key is True and key_node.value in ("on", "On"):
                    key = "on"  # YAML 1.1 reads this word as true
                if not isinstance(key, str) or key in found:
                    raise ConfigError(
                        f"the key {key!r} is {'written twice' if isinstance(key, str) else 'not a text'}",
                        file=file,
                        line=key_node.start_mark.line + 1,
                        hint="use each key once, as a string",
                        code="E-WORKFLOW-FILE",
                    )
                found[key] = build(value_node, (*at, key))
                lines[(*at, key)] = key_node.start_mark.line + 1
            return found
        if isinstance(node, yaml.SequenceNode):
            return [build(each, (*at, number)) for number, each in enumerate(node.value)]
        value = loader.construct_object(node, deep=True)
        return value if value is None or isinstance(value, bool | int | float | str) else str(node.value)

    try:
        root = loader.get_single_node()
        if root is None:
            raise ConfigError("the workflow file is empty", file=file, code="E-WORKFLOW-FILE")
        return build(root, ()), lines
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        raise ConfigError(
            "the workflow file is not valid YAML",
            file=file,
            line=mark.line + 1 if mark is not None else None,
            detail=str(getattr(exc, "problem", "") or exc)[:200],
            code="E-WORKFLOW-FILE",
        ) from exc
    finally:
        loader.dispose()
