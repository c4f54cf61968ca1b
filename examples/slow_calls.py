import anyio

from toolway import Hub
from toolway.events import CallFinished, Event


class SlowCalls:
    """Event sink that prints the phases of slow calls. A sink is called during the call, so it must not block."""

    wants_attempts = False  # True: also receive the start of each call and each attempt

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_call(self, event: CallFinished) -> None:
        if event.seconds >= self.seconds:
            phases = [phase for each in event.attempt_timings for phase in each.phases if phase.seconds > 0.01]
            print(event.name, event.outcome, *(f"{phase.name} {phase.seconds:.1f} s" for phase in phases))

    def on_event(self, event: Event) -> None:
        """Receive server events, such as state changes. This sink ignores them."""


async def main() -> None:
    async with Hub("examples/mcp.json") as hub:
        await hub.wait_ready("demo")
        hub.add_sink(SlowCalls(0.1))
        await hub.call_tool("demo.add", {"a": 1, "b": 2})
        await hub.call_tool("demo.sleep", {"seconds": 0.2})


anyio.run(main)
