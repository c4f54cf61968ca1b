"""A compiled set of Cedar policies: decides about a caller and an item. Synchronous, thread-safe.

An item is a tool, prompt or resource. A decision is made in two steps. The first one works without a call's
arguments: the result is yes, no, or that a policy must read the arguments. Lists show everything it does not deny.
The second one reads each call's arguments.

The only module that loads the Cedar library.
"""

from __future__ import annotations

import enum
import importlib
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from toolway.errors import ConfigError
from toolway.parts.policy.analysis import (
    ArgumentRead,
    Policy,
    PolicySetUse,
    UnsupportedPolicy,
    read_policies,
    relax,
    scope_reaches,
)
from toolway.parts.policy.argument_types import ArgumentTypes, UnfitArgument, check_reads, to_schema, to_values
from toolway.parts.policy.entities import (
    ACTIONS,
    Caller,
    ItemFacts,
    Reducer,
    Subject,
    build_schema,
    to_entities,
)
from toolway.parts.policy.server_reach import may_include
from toolway.types import Json

MAX_POLICIES: Final = 5000
MAX_DECISIONS: Final = 500_000  # that are kept; then all are forgotten, because they can be made again
MAX_SELECTIONS: Final = 20_000  # sets of policies that are kept
MAX_UNFIT: Final = 1000  # problems of policies with the schemas of tools that are kept for a report
POLICY_CODE: Final = "E-POLICY"


class Verdict(enum.Enum):
    """The result of a decision's first step, made without a call's arguments."""

    ALLOW = "allow"
    DENY = "deny"
    READ_ARGUMENTS = "arguments"  # it depends on the arguments of the call


class PolicyProblem(NamedTuple):
    """A policy that cannot be used, and why."""

    policy: str  # its label; "" if the whole text is wrong
    line: int
    message: str
    tool: str = ""  # set if it is not valid for the arguments of this tool

    def __str__(self) -> str:
        place = f"policy {self.policy}: " if self.policy else ""
        return f"{place}{self.message}" + (f" (for {self.tool})" if self.tool else "")


class InvalidPolicies(ValueError):
    """Raised when a string is not a valid set of policies."""

    def __init__(self, problems: Sequence[PolicyProblem]) -> None:
        super().__init__("; ".join(map(str, problems[:3])))
        self.problems = tuple(problems)


class AccessDecision(NamedTuple):
    """The decision on whether one call is allowed, and the policies behind it."""

    allowed: bool
    policies: tuple[str, ...] = ()  # labels
    reason: str = ""


class FirstStep(NamedTuple):
    """The first step of a decision, and what the second step needs."""

    verdict: Verdict
    decision: AccessDecision
    entities: Any = None  # of the second step: a handle of the Cedar library
    reads: frozenset[ArgumentRead] = frozenset()  # places in the arguments that the second step reads


class Selection(NamedTuple):
    """The policies whose principal, action and resource match a caller and an item."""

    policies: tuple[str, ...]  # ids
    all: Any
    static: Any  # those that read no arguments
    relaxed: Any  # those that read arguments, without these conditions; None if there are none


_NOTHING_PERMITS: Final = FirstStep(Verdict.DENY, AccessDecision(False))


def load_engine() -> Any:
    """Load the Cedar library. Raises `ConfigError` if it is not installed."""
    try:
        return importlib.import_module("cedarpy")
    except ImportError as exc:
        raise ConfigError(
            "policies need the package cedarpy",
            detail=str(exc),
            hint="install it: pip install 'toolway[policy]'",
            code="E-POLICY-MISSING",
        ) from None


class PolicyEngine:
    """A set of policies, parsed and validated once.

    Raises `InvalidPolicies` if the text is invalid, and `ConfigError` if the Cedar library is missing. Conditions on
    arguments are validated once the tool is known, because its schema defines their types.
    """

    def __init__(self, text: str) -> None:
        self._cedar = load_engine()
        try:
            self.policies = read_policies(text, self._cedar.policies_to_json_str)
        except ValueError as exc:
            raise InvalidPolicies([PolicyProblem("", 0, str(exc))]) from None
        if len(self.policies) > MAX_POLICIES:
            raise InvalidPolicies([PolicyProblem("", 0, f"more than {MAX_POLICIES} policies")])
        self._labels = {each.id: each.label for each in self.policies}
        self._conditional = {each.id: each for each in self.policies if each.use.reads_arguments}
        self.use = PolicySetUse.of(self.policies)
        self.reads_hour = "context.hour" in self.use.facts  # a decision may change with the hour of the day
        self.arguments = frozenset(name for each in self.policies for name in each.use.arguments)
        self.reduce = Reducer(self.use, self.arguments)
        self._check_all()
        self._by_subject: dict[Subject, tuple[tuple[str, ...], list[Policy]]] = {}  # ids and policies
        self._by_item: dict[tuple[tuple[str, ...], str, str, str], Selection] = {}
        self._selections: dict[tuple[str, ...], Selection] = {}  # by the ids of their policies
        self._steps: dict[tuple[Subject, int | None, ItemFacts], FirstStep] = {}
        self._valid: dict[tuple[str, ArgumentTypes], str] = {}  # (policy, types of arguments) → problem, or ""
        self._lock = threading.Lock()
        self.unfit: dict[tuple[str, str], PolicyProblem] = {}  # by policy and tool

    # -- decisions ----------------------------------------------------------------------------------------------------

    def first_step(
        self, subject: Subject, hour: int, item: ItemFacts, name: str = "", *, keep: bool = True
    ) -> FirstStep:
        """Return the first step of a decision, which works without call arguments.

        `name` is the item's name, for reports. With `keep`, the step is cached. Do not cache items whose names clients
        choose, because they would fill the cache.
        """
        key = (subject, hour if self.reads_hour else None, item)
        found = self._steps.get(key)
        if found is None:
            found = self._first_step(subject, hour, item, name)
            if not keep:
                return found
            if len(self._steps) >= MAX_DECISIONS:
                self._steps = {}
            self._steps[key] = found
        return found

    def _first_step(self, subject: Subject, hour: int, item: ItemFacts, name: str) -> FirstStep:
        selection = self._select(subject, item)
        if not selection.policies:
            return _NOTHING_PERMITS
        entities = self._cedar.Entities.from_json_str(json.dumps(to_entities(subject, item, self.use.facts)))
        request = _request(subject, hour, item, {})
        plain = self._ask(selection.static, request, entities)
        is_forbidden = not plain.allowed and bool(plain.policies or plain.reason)  # else nothing permits it
        if selection.relaxed is None or is_forbidden:
            return FirstStep(Verdict.ALLOW if plain.allowed else Verdict.DENY, plain)
        possible = self._cedar.is_authorized(request, selection.relaxed, entities)
        if possible.diagnostics.errors:
            return FirstStep(Verdict.DENY, AccessDecision(False, (), _error_text(possible.diagnostics.errors)))
        reached = [self._conditional[id_] for id_ in possible.diagnostics.reasons]
        # A permit changes nothing about what is permitted, and a forbid nothing about what nothing permits.
        if not any(each.is_permit is not plain.allowed for each in reached):
            return FirstStep(Verdict.ALLOW if plain.allowed else Verdict.DENY, plain)
        for policy in reached:
            problem = self.find_problem(policy, item.arguments, name)
            if problem is not None:
                return FirstStep(
                    Verdict.DENY, AccessDecision(False, (policy.label,), f"the policy is not valid: {problem}")
                )
        reads = frozenset(read for each in reached for read in each.use.argument_reads)
        return FirstStep(Verdict.READ_ARGUMENTS, plain, entities, reads)

    def decide(
        self, subject: Subject, hour: int, item: ItemFacts, arguments: Mapping[str, Any], name: str = ""
    ) -> AccessDecision:
        """Return the decision about one call with its arguments. `name` is the item's name, for reports."""
        step = self.first_step(subject, hour, item, name)
        if step.verdict is not Verdict.READ_ARGUMENTS:
            return step.decision
        try:
            check_reads(arguments, item.arguments, step.reads)
            values = to_values(arguments, item.arguments)
        except (UnfitArgument, OverflowError) as exc:
            return AccessDecision(False, (), f"the argument {exc}")
        return self._ask(self._select(subject, item).all, _request(subject, hour, item, values), step.entities)

    def _select(self, subject: Subject, item: ItemFacts) -> Selection:
        """Return the policies whose principal, action and resource match a caller and an item.

        No other policy can apply to them.
        """
        chosen = self._by_subject.get(subject)
        if chosen is None:
            groups = frozenset(("Group", each) for each in subject.groups)
            policies = [
                each
                for each in self.policies
                if scope_reaches(each.definition["principal"], "User", subject.id, groups)
            ]
            chosen = (tuple(each.id for each in policies), policies)
            if len(self._by_subject) >= MAX_SELECTIONS:
                self._by_subject, self._by_item, self._selections = {}, {}, {}
            self._by_subject[subject] = chosen
        key = (chosen[0], item.type, item.id, item.server)
        found = self._by_item.get(key)
        if found is None:
            parents = frozenset({("Server", item.server)})
            action = ACTIONS[item.type]
            reaching = [
                each
                for each in chosen[1]
                if scope_reaches(each.definition["action"], "Action", action, frozenset())
                and scope_reaches(each.definition["resource"], item.type, item.id, parents)
            ]
            if len(self._by_item) >= MAX_SELECTIONS:
                self._by_item, self._selections = {}, {}
            found = self._by_item[key] = self._build_selection(reaching)
        return found

    def _build_selection(self, policies: Sequence[Policy]) -> Selection:
        ids = tuple(each.id for each in policies)
        found = self._selections.get(ids)
        if found is None:
            reading = [each for each in policies if each.use.reads_arguments]
            static = {each.id: each.definition for each in policies if not each.use.reads_arguments}
            relaxed = self._build({each.id: relax(each) for each in reading}) if reading else None
            everything = self._build({each.id: each.definition for each in policies})
            found = self._selections[ids] = Selection(
                ids, everything, self._build(static) if reading else everything, relaxed
            )
        return found

    def may_include(self, subject: Subject, server: str) -> bool:
        """Return False if no policy can permit any of a server's items to a caller.

        The server's items do not need to be known.
        """
        return may_include(self.policies, subject, server)

    def _ask(self, policies: Any, request: Json, entities: Any) -> AccessDecision:
        """Evaluate a set of policies for a request. If a policy fails with an error, the request is denied.

        Cedar itself would skip the failing policy.
        """
        found = self._cedar.is_authorized(request, policies, entities)
        diagnostics = found.diagnostics
        labels = tuple(self._labels.get(each, each) for each in diagnostics.reasons)
        if diagnostics.errors:
            return AccessDecision(False, labels, _error_text(diagnostics.errors, self._labels))
        return AccessDecision(found.allowed, labels)

    # -- validation ---------------------------------------------------------------------------------------------------

    def find_problem(self, policy: Policy, types: ArgumentTypes, tool: str) -> str | None:
        """Return why a policy is invalid for a tool with these argument types, or None if it is valid."""
        key = (policy.id, types)
        found = self._valid.get(key)
        if found is None:
            schema = build_schema(to_schema(types))
            result = self._cedar.validate_policies(self.text_of(policy), json.dumps(schema))
            found = "" if result.validation_passed else _validation_text(result.errors)
            with self._lock:
                if len(self._valid) >= MAX_DECISIONS:
                    self._valid = {}
                self._valid[key] = found
        if found:
            with self._lock:
                if len(self.unfit) < MAX_UNFIT:
                    self.unfit.setdefault((policy.label, tool), PolicyProblem(policy.label, policy.line, found, tool))
        return found or None

    def conditional_policies(self, item: ItemFacts) -> list[Policy]:
        """Return the policies that read arguments, and whose action and resource include an item.

        The caller does not matter.
        """
        parents = frozenset({("Server", item.server)})
        return [
            each
            for each in self._conditional.values()
            if scope_reaches(each.definition["action"], "Action", ACTIONS[item.type], frozenset())
            and scope_reaches(each.definition["resource"], item.type, item.id, parents)
        ]

    def text_of(self, policy: Policy) -> str:
        """Return a policy's text in Cedar's standard form."""
        return str(self._cedar.policies_from_json_str(_document({policy.id: policy.definition})))

    def _check_all(self) -> None:
        """Validate all policies, except for their conditions on arguments. Raises `InvalidPolicies`."""
        problems = [
            PolicyProblem(each.label, each.line, 'it reads context.args: write action == Action::"call" into its scope')
            for each in self._conditional.values()
            if any(scope_reaches(each.definition["action"], "Action", other, frozenset()) for other in ("get", "read"))
        ]
        if problems:
            raise InvalidPolicies(problems)
        schema = self._cedar.Schema.from_json_str(json.dumps(build_schema()))
        definitions = {
            each.id: (
                {**relax(each), "effect": each.definition["effect"]} if each.use.reads_arguments else each.definition
            )
            for each in self.policies
        }
        if not definitions:
            return
        text = self._cedar.policies_from_json_str(_document(definitions))
        if self._cedar.validate_policies(text, schema).validation_passed:
            return
        for policy in self.policies:
            text = self._cedar.policies_from_json_str(_document({policy.id: definitions[policy.id]}))
            result = self._cedar.validate_policies(text, schema)
            if not result.validation_passed:
                problems.append(PolicyProblem(policy.label, policy.line, _validation_text(result.errors)))
        raise InvalidPolicies(problems or [PolicyProblem("", 0, "the policies are not valid together")])

    def _build(self, definitions: Mapping[str, Json]) -> Any:
        return self._cedar.PolicySet.from_json_str(_document(definitions))

    def build_permits(self, definitions: Mapping[str, Json]) -> Any:
        """Build a Cedar policy set from these definitions, which are given by policy id, for use with `reasons`."""
        return self._build(definitions)

    def reasons(self, policies: Any, subject: Subject, hour: int, item: ItemFacts) -> list[str]:
        """Return the labels of the policies from `build_permits` that apply to a caller and an item."""
        found = self._cedar.is_authorized(
            _request(subject, hour, item, {}), policies, json.dumps(to_entities(subject, item, self.use.facts))
        )
        return [self._labels[each] for each in found.diagnostics.reasons]

    def subject_of(self, caller: Caller) -> Subject:
        return self.reduce.subject(caller)


def _request(subject: Subject, hour: int, item: ItemFacts, arguments: Json) -> Json:
    context: Json = {"client": subject.client, "hour": hour, "mfa": subject.mfa}
    action = ACTIONS[item.type]
    if action == "call":
        context["args"] = arguments
    return {
        "principal": {"type": "User", "id": subject.id},
        "action": {"type": "Action", "id": action},
        "resource": {"type": item.type, "id": item.id},
        "context": context,
    }


def _document(definitions: Mapping[str, Json]) -> str:
    return json.dumps({"templates": {}, "staticPolicies": dict(definitions), "templateLinks": []})


def _validation_text(errors: Sequence[Any]) -> str:
    texts = [each.error.split("`, ", 1)[-1] if each.error.startswith("for policy `") else each.error for each in errors]
    return "; ".join(dict.fromkeys(texts))[:500] or "not valid"


def _error_text(errors: Sequence[str], labels: Mapping[str, str] = {}) -> str:
    text = "; ".join(errors)[:500]
    for id_, label in labels.items():
        text = text.replace(f"`{id_}`", label)
    return f"a policy has an error: {text}"


__all__ = [
    "POLICY_CODE",
    "AccessDecision",
    "FirstStep",
    "InvalidPolicies",
    "PolicyEngine",
    "PolicyProblem",
    "UnsupportedPolicy",
    "Verdict",
    "load_engine",
]
