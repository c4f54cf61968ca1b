import anyio

from toolway import Hub
from toolway.events import CallFinished, Event


class SlowCalls:
    """Prints where the time of slow calls went. A sink is called in the middle of the work: it returns at once."""

    wants_steps = False  # True: hear of each beginning and each try too

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_call(self, fact: CallFinished) -> None:
        if fact.seconds >= self.seconds:
            phases = [phase for each in fact.tries for phase in each.phases if phase.seconds > 0.01]
            print(fact.name, fact.outcome, *(f"{phase.name} {phase.seconds:.1f} s" for phase in phases))

    def on_event(self, fact: Event) -> None:
        """What happens to servers."""


async def main() -> None:
    async with Hub("examples/mcp.json") as hub:
        await hub.wait_ready("demo")
        hub.listen(SlowCalls(0.1))
        await hub.call_tool("demo.add", {"a": 1, "b": 2})
        await hub.call_tool("demo.sleep", {"seconds": 0.2})


anyio.run(main)
