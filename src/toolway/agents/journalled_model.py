"""Journaled model: each of a model's answers is a step, so a replay does not ask again.

A request that a crash interrupted is sent again, because it has no effect: it only costs money. Each one that was sent
counts against the budget, which ends a run whose process keeps crashing. A provider that is overloaded or too slow
is asked again after a wait, which is a step too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from functools import partial
from itertools import count
from typing import Any, Final

import msgspec
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelConnectionError,
    ModelOverloadedError,
    ModelRateLimitError,
    ModelServerError,
    ModelTimeoutError,
    ModelUnavailableError,
    UnexpectedModelBehavior,
)
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from toolway.agents.answer_limit import find_cause, find_refusal, limit_answers
from toolway.agents.errors import BUDGET_HINT, AgentError, BudgetUsed
from toolway.agents.prices import price_of
from toolway.agents.settings import AgentSettings, Budget
from toolway.agents.spending import Spending
from toolway.agents.transcript import read_arguments, read_model_name
from toolway.network.resolver import AddressDenied
from toolway.secrets.detection import SecretMasker, is_secret_name
from toolway.secrets.replacer import mask_and_cut
from toolway.telemetry import otel_attributes
from toolway.telemetry.otel_attributes import chat_span
from toolway.types import Effect, Json
from toolway.workflows.definition import Retry
from toolway.workflows.python_workflow import RunContext, StepFailed

MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
MAX_TRIES: Final = 5  # of one answer, if the provider is overloaded
MAX_LOST: Final = 50  # requests for one answer that crashes may interrupt, if the budget has no limit for requests
REQUEST_TIMEOUT_S: Final = 600.0
SLACK_S: Final = 60.0  # for the end of a request that took too long
MAX_WAIT_S: Final = 120.0  # before the provider is asked again, whatever it says
_TEMPORARY: Final = (
    ModelRateLimitError,
    ModelUnavailableError,
    ModelOverloadedError,
    ModelServerError,
    ModelConnectionError,
    ModelTimeoutError,
)


class JournalledModel(WrapperModel):
    """Stores each of a model's answers in a run's journal, and returns it from there on replay.

    Args:
        wrapped: The model of the provider.
        run: The run, in whose journal the answers are stored.
        settings: Budget and prices.
        on_text: Called with each part of a text while it arrives. None: answers are not streamed.
    """

    def __init__(
        self, wrapped: Model, run: RunContext, settings: AgentSettings, on_text: Callable[[str], None] | None = None
    ) -> None:
        super().__init__(wrapped)
        self._run = run
        self._agent = settings
        self._on_text = on_text
        self._began = run.now() if settings.budget.seconds is not None else 0.0
        self._ids: set[str] = set()
        self.on_answer: Callable[[str, str, list[Json]], None] | None = None  # step, text, tool calls
        self.calls: dict[str, str] = {}  # step name of a tool call, by call id
        self.call_ids: dict[str, str] = {}  # … and the other way round
        self.responses: list[ModelResponse] = []
        self.spending = Spending(settings)
        self._pauses: list[tuple[float, float]] = []
        self._used_in_pauses = 0.0

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Return the next answer of the model: from the journal if it is there, else from the provider, and store it.

        Raises:
            BudgetUsed: The budget does not allow another request.
            AgentError: The provider does not answer, or refuses the request.
        """
        self._check_budget()
        number = len(self.responses) + 1
        estimate = partial(self._estimate, messages, model_request_parameters)

        async def ask(earlier: Iterator[int]) -> Json:
            lost = next(earlier)
            if lost and (used := self.spending.find_exceeded(lost, estimate())):
                return {"error": {"message": used.message, "detail": used.detail, "temporary": False, "budget": True}}
            try:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    response = await self._ask(messages, model_settings, model_request_parameters)
            except TimeoutError:
                message = f"no answer within {REQUEST_TIMEOUT_S:g} s"
                return {"error": {"message": message, "temporary": True, "lost": True}}
            except Exception as exc:
                if (refusal := find_refusal(exc)) is not None:
                    return {"error": {"message": refusal, "temporary": False}}
                if (denied := find_cause(exc, AddressDenied)) is not None:
                    return {"error": {"message": denied.reason, "hint": denied.hint, "temporary": False}}
                if not isinstance(exc, ModelAPIError | UnexpectedModelBehavior):
                    raise
                return _error_to_json(exc)
            if self._is_cut(response):
                return {"error": {"message": "the answer broke off", "temporary": True}}
            cost = price_of(response, self._agent)
            return _check_size(ModelMessagesTypeAdapter.dump_python([response], mode="json")[0], cost)

        answer, lost = await self._step(f"model/{number}", ask)
        response = self._read(number, answer)
        self.spending.add_answer(response, lost, estimate())
        self.responses.append(response)
        if self.on_answer is not None:
            text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
            self.on_answer(f"model/{number}", text, self._calls_of(response))
        return response

    def _calls_of(self, response: ModelResponse) -> list[Json]:
        return [
            {
                "step": self.calls[part.tool_call_id],
                "tool": read_model_name(part.tool_name),
                "arguments": read_arguments(part.args),
            }
            for part in response.parts
            if isinstance(part, ToolCallPart)
        ]

    async def _step(self, name: str, ask: Callable[[Iterator[int]], Any]) -> tuple[Json, int]:
        """Return an answer of the model from the journal or the provider, and how many requests for it have no answer.

        A crash interrupted these, or the provider took too long: it may charge for them.
        """
        requests = self._agent.budget.requests
        max_sent = 1 + (MAX_LOST if requests is None else requests)  # the last one is refused by the budget, not sent
        lost = 0
        run = self._run.with_span(chat_span(self.wrapped.system, self.model_name, self._run.id, _describe_answer))
        for attempt in range(1, MAX_TRIES + 1):
            path = name if attempt == 1 else f"{name}~{attempt}"
            try:
                answer: Json = await run.do(
                    partial(ask, count(self._run.attempts(path))),
                    name=path,
                    effect=Effect.UNSAFE,  # its intent is stored: a second request after a crash is counted
                    timeout=REQUEST_TIMEOUT_S + SLACK_S,
                    retry=Retry(tries=max_sent, wait=0.0),
                    on_unknown="retry",
                )
            except StepFailed as exc:
                sent = self._run.attempts(path)
                if sent >= max_sent and (used := self.spending.find_exceeded(sent)):
                    raise used from exc
                raise AgentError(
                    "the model did not answer", detail=exc.message, hint="toolway agent show RUN", code="E-AGENT-MODEL"
                ) from exc
            attempts = self._run.attempts(path)
            lost += attempts - 1
            if "error" not in answer:
                self.spending.requests += attempts
                return answer, lost
            error: Json = answer["error"]
            self.spending.requests += attempts - bool(error.get("budget"))  # the last one was not sent
            lost += bool(error.get("lost"))
            if error.get("budget"):
                raise BudgetUsed(error["message"], detail=error["detail"], hint=BUDGET_HINT)
            if not error["temporary"] or attempt == MAX_TRIES:
                raise AgentError(
                    f"the provider of {self.model_name} did not answer",
                    detail=error["message"],
                    hint=error.get("hint") or "check the model name, the API key, and your account's limits",
                    code="E-AGENT-MODEL",
                )
            await self._run.wait(min(MAX_WAIT_S, error.get("retry_after") or 2.0**attempt), name=f"{path}/wait")
            self._check_budget()
        raise AssertionError("the last attempt returns or raises")

    async def _ask(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        parameters: ModelRequestParameters,
    ) -> ModelResponse:
        limit_answers(self.wrapped)
        if self._on_text is None:
            return await self.wrapped.request(messages, model_settings, parameters)
        async with self.wrapped.request_stream(messages, model_settings, parameters) as stream:
            async for event in stream:
                if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                    self._on_text(event.part.content)
                elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                    self._on_text(event.delta.content_delta)
            return stream.get()

    def _is_cut(self, response: ModelResponse) -> bool:
        """Return True if a streamed answer is incomplete: it lacks the finish reason that ends a stream."""
        is_streamed = self._on_text is not None or self.wrapped.system in ("anthropic", "bedrock")  # long answers are
        return (
            is_streamed and bool(response.provider_name) and not (response.provider_details or {}).get("finish_reason")
        )

    def _read(self, number: int, answer: Json) -> ModelResponse:
        """Decode an answer of the model that was read from the journal.

        A tool call without an id, or with one that was used before, gets a new id. Arguments that are `null` are none.
        """
        response = ModelMessagesTypeAdapter.validate_python([answer["response"]])[0]
        assert isinstance(response, ModelResponse)
        parts = list(response.parts)
        calls = 0
        for place, part in enumerate(parts):
            if isinstance(part, ToolCallPart):
                calls += 1
                if not part.tool_call_id or part.tool_call_id in self._ids:
                    part = parts[place] = replace(part, tool_call_id=self._new_id(number, calls))
                if isinstance(part.args, str) and part.args.strip() == "null":
                    part = parts[place] = replace(part, args=None)
                self._ids.add(part.tool_call_id)
                self.calls[part.tool_call_id] = f"tool/{number}.{calls}"
                self.call_ids[f"tool/{number}.{calls}"] = part.tool_call_id
        return replace(response, parts=parts)

    def _new_id(self, number: int, calls: int) -> str:
        """Return an id for a tool call that no other call of the run has. A replay gets the same one."""
        id = f"toolway_{number}_{calls}"
        while id in self._ids:  # the model may have used it
            id += "_"
        return id

    def _check_budget(self) -> None:
        """Raise `BudgetUsed` if the budget of the run is used up, so no more requests may be sent."""
        used = self.spending.find_exceeded(seconds=self.seconds())
        if used is not None:
            raise used

    def left_budget(self, calls: int) -> Budget:
        """Return what is left of the run's budget, if the run has made `calls` tool calls so far."""
        return self.spending.left(calls, self.seconds())

    def seconds(self) -> float | None:
        """Return the seconds that the run has worked, without pauses. None if the budget has no limit for seconds."""
        if self._agent.budget.seconds is None:
            return None
        return self._run.now() - self._began - _total_length(self._pauses) + self._used_in_pauses

    def add_pause(self, times: tuple[float, float] | None, used: float = 0.0) -> None:
        """Record a (begin, end) period when the run waited for a user or a child run.

        This time does not count against the budget, except `used`: the seconds in which the child run worked.
        """
        if times is not None:
            self._pauses.append(times)
            self._used_in_pauses += used

    def _estimate(self, messages: list[ModelMessage], parameters: ModelRequestParameters) -> ModelResponse:
        """Return an empty answer with the estimated token usage of a request, at four characters per token."""
        chars = len(ModelMessagesTypeAdapter.dump_json(messages))
        chars += sum(len(f"{each.parameters_json_schema}{each.description}") for each in parameters.function_tools)
        last = self.responses[-1].usage if self.responses else RequestUsage()
        output = self._agent.max_tokens or max((each.usage.output_tokens for each in self.responses), default=0)
        usage = RequestUsage(input_tokens=max(chars // 4, last.input_tokens), output_tokens=output)
        return ModelResponse(parts=[], usage=usage, model_name=self.model_name, provider_name=self.wrapped.system)


def _total_length(times: list[tuple[float, float]]) -> float:
    """Return the total length of time intervals (begin, end). Overlapping parts count once."""
    total, covered = 0.0, float("-inf")
    for began, ended in sorted(times):
        total += max(0.0, ended - max(began, covered))
        covered = max(covered, ended)
    return total


def _describe_answer(answer: Json) -> Json:
    """Return the span attributes of an answer. Text is left out, because it may be confidential."""
    if "error" in answer:
        return {otel_attributes.ATTR_ERROR_TYPE: "budget" if answer["error"].get("budget") else "no_answer"}
    response: Json = answer["response"]
    usage: Json = response.get("usage") or {}
    found: Json = {
        otel_attributes.ATTR_RESPONSE_MODEL: response.get("model_name"),
        otel_attributes.ATTR_RESPONSE_ID: response.get("provider_response_id"),
        otel_attributes.ATTR_INPUT_TOKENS: usage.get("input_tokens"),
        otel_attributes.ATTR_OUTPUT_TOKENS: usage.get("output_tokens"),
        otel_attributes.ATTR_CACHE_READ_TOKENS: usage.get("cache_read_tokens"),
        otel_attributes.ATTR_CACHE_WRITE_TOKENS: usage.get("cache_write_tokens"),
        otel_attributes.ATTR_REASONING_TOKENS: usage.get("output_reasoning_tokens"),
    }
    if response.get("finish_reason"):
        found[otel_attributes.ATTR_FINISH_REASONS] = [response["finish_reason"]]
    return {key: value for key, value in found.items() if value is not None}


def _error_to_json(exc: ModelAPIError | UnexpectedModelBehavior) -> Json:
    return {
        "error": {
            "message": mask_and_cut(str(exc), 1000, _mask_keys),
            "temporary": isinstance(exc, _TEMPORARY) or type(exc) is ModelAPIError,  # an answer that is not JSON
            "retry_after": getattr(exc, "retry_after", None),
        }
    }


def _mask_keys(text: str) -> str:
    """Mask secrets from the environment: a provider's error may repeat the API key."""
    masker = SecretMasker()
    for name, value in os.environ.items():
        if is_secret_name(name):
            masker.add(value)
    return masker.mask(text)


def _check_size(response: Json, cost: Decimal | None) -> Json:
    """Return a model's answer with its cost as a journal entry; an error entry if the answer is too large."""
    size = len(msgspec.json.encode(response))
    if size > MAX_ANSWER_BYTES:
        message = f"the answer has {size} bytes, more than {MAX_ANSWER_BYTES}: limit it with max_tokens"
        return {"error": {"message": message, "temporary": False}}
    return {"response": response, "usd": None if cost is None else float(cost)}
