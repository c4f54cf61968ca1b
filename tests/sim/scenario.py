"""What a seed stands for: servers, the calls of several callers, and what happens to the servers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Final, Literal, get_args

from tests.sim.faults import ON_A_PIPE, ON_HTTP, TICK, Fate, ticks
from tests.sim.servers import KEY_META, Traits
from toolway.config.schema import HealthCheck, Limits, RestartPolicy, RetryPolicy, Server, Timeout, ToolSettings
from toolway.gateway.mcp.view import STARTUP_WINDOW_S
from toolway.types import Effect, Era, Json

MOST_ATTEMPTS: Final = 21  # of one call; more cannot be configured

#: What a server says of its tools, and what the operator says. `send` is called a read by its server, and is none.
_HINTS: Final[Mapping[str, Json]] = {
    "look": {"readOnlyHint": True},
    "peek": {},
    "put": {"idempotentHint": True},
    "pay": {},
    "send": {"readOnlyHint": True},
    "redo": {},
}
_RULES: Final = {
    "peek": ToolSettings(effect=Effect.READ),
    "send": ToolSettings(effect=Effect.UNSAFE, timeout=8.0),
    "redo": ToolSettings(idempotent=True),
}
TOOLS: Final = tuple(_HINTS)
_TIMEOUTS: Final = ((None, TICK, 0.25, 1.0, 5.0, 20.0), (40, 2, 10, 10, 20, 10))  # and how often each is chosen


@dataclass(frozen=True, slots=True)
class Part:
    """One server: as it is configured, as it is, and how often something goes wrong with it."""

    server: Server
    traits: Traits
    rate: float
    fates: tuple[Fate, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """One call of a caller."""

    call: str
    server: str
    tool: str
    nonce: str
    effect: Effect
    limit: float
    attempts: int
    timeout: float | None = None
    max_attempts: int | None = None
    idempotent: bool | None = None
    key: str | None = None
    shared: bool = False
    progress: bool = False
    sure: bool = False  # nothing goes wrong with the server, and the time is enough
    leaves_after: float | None = None  # the caller changes his mind
    waits: float = 0.0  # seconds before he makes it,
    turns: int = 0  # and turns of the loop


@dataclass(frozen=True, slots=True)
class Step:
    """A caller waits, then makes some calls at once."""

    pause: float
    plans: tuple[Plan, ...]


@dataclass(frozen=True, slots=True)
class Deed:
    """Something that is done to a server."""

    at: float
    server: str
    what: str  # restart, replace, remove, crash, upgrade, hang, change


@dataclass(frozen=True, slots=True)
class Drain:
    """How a gateway is shut down."""

    delay: float  # seconds for which it serves on
    patience: float  # seconds that calls may take after that
    skips_after: float | None  # seconds until a call asks for it again without waiting


@dataclass(frozen=True, slots=True)
class Scenario:
    start: float  # on the loop's clock
    parts: Mapping[str, Part]
    callers: tuple[tuple[Step, ...], ...]
    deeds: tuple[Deed, ...]
    close_after: float | None  # seconds; None: when all is done, and after a time of calm
    slow_keys: bool  # the store of keys is slow, and not always there
    drain: Drain | None = None  # of a gateway


#: Who is called: a hub; a hub with servers that take seconds; a gateway with such servers, which is shut down.
Front = Literal["hub", "slow", "gateway"]
FRONTS: Final[tuple[Front, ...]] = get_args(Front)


def draw(seed: int, calls: int, front: Front = "hub") -> Scenario:
    if front == "hub":
        return _draw(seed, calls, ("modern", "legacy"))
    plain = _draw(seed, calls, ("modern", "modern", "modern", "legacy"))
    dice = random.Random(f"{front} {seed}")
    if front == "slow":
        parts = {name: _slow(dice, part) for name, part in plain.parts.items()}
        return replace(plain, parts=parts, callers=_usual(dice, _unsure(plain.callers), parts))
    parts = {name: _slow(dice, _for_gateway(part)) for name, part in plain.parts.items()}
    return replace(
        plain,
        parts=parts,
        callers=_through_gateway(_usual(dice, _unsure(plain.callers), parts), parts),
        close_after=ticks(dice, 64, 64 * 40) if dice.random() < 0.7 else None,
        drain=Drain(
            delay=dice.choice((0.0, 0.0, 1.0)),
            patience=dice.choice((0.0, 0.5, 3.0, 30.0)),
            skips_after=ticks(dice, 0, 64 * 4) if dice.random() < 0.3 else None,
        ),
    )


def _slow(dice: random.Random, part: Part) -> Part:
    return replace(part, traits=replace(part.traits, slow=dice.choice((0.0, 0.1, 0.5))))


def _for_gateway(part: Part) -> Part:
    """One that asks for nothing, and is started at once: a gateway knows only the tools that were listed."""
    return replace(part, server=replace(part.server, lazy=False), traits=replace(part.traits, asks=0.0))


def _unsure(callers: tuple[tuple[Step, ...], ...]) -> tuple[tuple[Step, ...], ...]:
    """A call to a slow server may run out of time."""
    return _each(callers, lambda plan: replace(plan, sure=False))


def _usual(
    dice: random.Random, callers: tuple[tuple[Step, ...], ...], parts: Mapping[str, Part]
) -> tuple[tuple[Step, ...], ...]:
    """Most callers ask for nothing but the call, and often for the same tool; such a call can be a flight."""

    def usual(plan: Plan) -> Plan:
        if plan.shared or plan.key is not None or dice.random() < 0.3:
            return plan
        server = parts[plan.server].server
        tool = plan.tool if dice.random() < 0.4 else "pay"
        rule = server.tools.get(tool, ToolSettings()).timeout
        return replace(
            plan,
            tool=tool,
            effect=effect_of(server, tool, None, None),
            limit=rule if rule is not None else server.timeout.total,
            attempts=min(server.retry.max_attempts, MOST_ATTEMPTS),
            timeout=None,
            idempotent=None,
            max_attempts=None,
            progress=False,
        )

    return _each(callers, usual)


def _through_gateway(callers: tuple[tuple[Step, ...], ...], parts: Mapping[str, Part]) -> tuple[tuple[Step, ...], ...]:
    """Without what a client of a gateway cannot ask for."""

    def through(plan: Plan) -> Plan:
        server = parts[plan.server].server
        return replace(
            plan,
            effect=effect_of(server, plan.tool, None, plan.key),
            # A gateway that has just started waits for the tools before it looks for the time limit of one.
            limit=plan.limit if plan.timeout is not None else plan.limit + STARTUP_WINDOW_S,
            attempts=min(server.retry.max_attempts, MOST_ATTEMPTS),
            idempotent=None,
            max_attempts=None,
        )

    return _each(callers, through)


def _each(callers: tuple[tuple[Step, ...], ...], change: Callable[[Plan], Plan]) -> tuple[tuple[Step, ...], ...]:
    return tuple(
        tuple(replace(step, plans=tuple(change(plan) for plan in step.plans)) for step in steps) for steps in callers
    )


def _draw(seed: int, calls: int, eras: tuple[Era, ...]) -> Scenario:
    dice = random.Random(f"scenario {seed}")
    rate = dice.choice((0.02, 0.1, 0.2, 0.4))
    names = [f"s{number}" for number in range(dice.randint(3, 6))]
    parts = {name: _part(dice, rate if name != names[0] else 0.0, eras) for name in names}
    return Scenario(
        start=float(dice.choice((0, 1000, 2**20))),
        parts=parts,
        callers=_callers(dice, parts, calls),
        deeds=tuple(_deeds(dice, names[1:])),
        close_after=ticks(dice, 64, 64 * 120) if dice.random() < 0.1 else None,
        slow_keys=dice.random() < 0.3,
    )


# -- servers ----------------------------------------------------------------------------------------------------------


def _part(dice: random.Random, rate: float, eras: tuple[Era, ...]) -> Part:
    transport = dice.choice(("pipe", "http"))
    on_a_pipe = transport == "pipe"
    era = dice.choice(eras)
    probe = dice.choice(("refuses", "ignores", "dies")) if on_a_pipe else "refuses"
    traits = Traits(
        transport=transport,  # type: ignore[arg-type]
        era=era,
        tools=tuple({"name": n, "inputSchema": {"type": "object"}, "annotations": h} for n, h in _HINTS.items()),
        probe=probe if rate else "refuses",  # type: ignore[arg-type]
        obedient=dice.random() < 0.7,
        orderly=dice.random() < 0.3,
        keys=dice.random() < 0.2,
        asks=0.1 if era == "modern" else 0.0,
        fails=dice.choice((0.0, 0.1)),
    )
    fates = ON_A_PIPE if on_a_pipe else ON_HTTP
    if not on_a_pipe:
        fates = (*fates, Fate.MISMATCH) if era == "modern" else (*fates, Fate.FORGOTTEN, Fate.FORGOTTEN)
    return Part(_server(dice, traits, reliable=not rate), traits, rate, fates)


def _server(dice: random.Random, traits: Traits, *, reliable: bool) -> Server:
    peek = ToolSettings(effect=Effect.READ, cache=dice.choice((0.0, 2.0)))
    spelled = "legacy" if traits.era == "legacy" else "modern"
    return Server(
        command="sim" if traits.transport == "pipe" else None,
        url="http://sim.invalid/" if traits.transport == "http" else None,
        era=dice.choice(("auto", "auto", "auto", spelled)),  # type: ignore[arg-type]
        lazy=dice.random() < 0.25,
        idle_timeout=dice.choice((0.0, 0.0, 1.0, 3.0)),
        timeout=Timeout(total=20.0, queue=dice.choice((0.25, 1.0, 5.0)), start=4.0 if dice.random() < 0.3 else 30.0),
        retry=RetryPolicy(max_attempts=dice.choice((1, 2, 3, 3, 9)), initial_backoff=1 / 16),
        idempotent=dice.random() < 0.15,
        trusted=dice.random() < 0.25,
        tools={**_RULES, "peek": peek},
        idempotency_meta_key=KEY_META if traits.keys else None,
        not_processed_codes=(-32603,) if traits.orderly else (),
        restart=RestartPolicy() if dice.random() < 0.3 else RestartPolicy(max_restarts=50),
        health=HealthCheck(
            interval=dice.choice((5.0, 30.0)), timeout=6.0, failure_threshold=2, during_calls=dice.random() < 0.3
        ),
        limits=Limits() if reliable else Limits(dice.choice((1, 2, 4, 128)), dice.choice((0, 2, 8, 1024))),
    )


# -- calls ------------------------------------------------------------------------------------------------------------


def effect_of(server: Server, tool: str, plan: bool | None, key: str | None) -> Effect:
    """The most that the hub may see in a call; written down again, so it is not the hub's own opinion."""
    rule = server.tools.get(tool, ToolSettings())
    effect = rule.effect
    if effect is None:
        hints = _HINTS[tool]
        effect = Effect.READ if hints.get("readOnlyHint") else Effect.UNSAFE
        effect = Effect.IDEMPOTENT if hints.get("idempotentHint") else effect
    word = next((w for w in (plan, rule.idempotent, server.idempotent) if w is not None), False)
    honoured = key is not None and server.idempotency_meta_key is not None
    return Effect.IDEMPOTENT if effect is Effect.UNSAFE and (word or honoured) else effect


def _callers(dice: random.Random, parts: Mapping[str, Part], calls: int) -> tuple[tuple[Step, ...], ...]:
    plans = _plans(dice, parts)
    callers: list[list[Step]] = [[] for _ in range(dice.randint(2, 8))]
    while calls > 0:
        size = min(calls, dice.choice((1, 1, 1, 2, 3, 8)))
        calls -= size
        at_once = dice.random() < 0.2
        pause = 0.0 if at_once else ticks(dice, 0, 64 * dice.choice((1, 4, 12)))
        steps = dice.choice(callers)
        steps.append(Step(pause, tuple(next(plans) for _ in range(size))))
        echoes = tuple(_echo(dice, plan) for plan in steps[-1].plans if plan.key or plan.shared)[:calls]
        if echoes and dice.random() < 0.5:
            calls -= len(echoes)
            steps[-1] = replace(steps[-1], plans=(*steps[-1].plans, *echoes))
    return tuple(tuple(steps) for steps in callers)


def _echo(dice: random.Random, plan: Plan) -> Plan:
    """The same call again, at the moment when the time of the first one is over, which the hub may not have noticed."""
    return replace(
        plan,
        call=f"{plan.call}e",
        waits=plan.limit if dice.random() < 0.7 else ticks(dice, 0, 32),
        turns=dice.randint(0, 6),
        leaves_after=ticks(dice, 0, 64) if dice.random() < 0.2 else None,
    )


def _plans(dice: random.Random, parts: Mapping[str, Part]) -> Iterator[Plan]:
    keyed: list[Plan] = []
    for number in count():
        call = f"c{number}"
        server = dice.choice(tuple(parts))
        tool = dice.choice(TOOLS)
        nonce, key, shared = f"n{number}", None, False
        if tool == "peek" and dice.random() < 0.7:
            nonce, shared = f"{server}{dice.randrange(3)}", True
        elif keyed and dice.random() < 0.15:
            twin = dice.choice(keyed[-5:])
            server, tool, key = twin.server, twin.tool, twin.key
            nonce = twin.nonce if dice.random() < 0.9 else nonce  # or the key is used for another call, by mistake
        elif dice.random() < 0.15:
            key = f"k{number}"
        part = parts[server]
        plan = _plan(dice, part.server, call, server, tool, nonce, key, shared, patient=not part.rate)
        if key == f"k{number}":
            keyed.append(plan)
        yield plan


def _plan(
    dice: random.Random,
    definition: Server,
    call: str,
    server: str,
    tool: str,
    nonce: str,
    key: str | None,
    shared: bool,
    patient: bool,
) -> Plan:
    timeout = dice.choices(*_TIMEOUTS)[0]
    if patient and timeout is not None and timeout > TICK:
        timeout = 10.0
    rule = definition.tools.get(tool, ToolSettings()).timeout
    limit = timeout if timeout is not None else rule if rule is not None else definition.timeout.total
    max_attempts = dice.choice((None, None, None, 1, 2, 8))
    idempotent = dice.choice((None, None, None, None, True, False))
    attempts = definition.retry.max_attempts if max_attempts is None else max_attempts
    return Plan(
        call=call,
        server=server,
        tool=tool,
        nonce=nonce,
        effect=effect_of(definition, tool, idempotent, key),
        limit=limit,
        attempts=min(attempts, MOST_ATTEMPTS),
        timeout=timeout,
        max_attempts=max_attempts,
        idempotent=idempotent,
        key=key,
        shared=shared,
        sure=patient and limit > 1 and key is None,
        progress=not shared and dice.random() < 0.1,
        leaves_after=ticks(dice, 0, 64 * 2) if dice.random() < 0.1 else None,
    )


# -- deeds ------------------------------------------------------------------------------------------------------------


def _deeds(dice: random.Random, names: list[str]) -> Iterator[Deed]:
    people = ("restart", "replace", "remove") if dice.random() < 0.3 else ()
    what = (*people, *people, "crash", "crash", "hang", "change", "change", "upgrade")
    at = 0.0
    for _ in range(dice.randint(0, 12)):
        at += ticks(dice, 0, 64 * 20)
        yield Deed(at, dice.choice(names), dice.choice(what))
