"""Process that starts one process after another for an agent run, which is killed with SIGKILL at a named point.

    python -m tests.agents.kill_runner        # one JSON object per line in; the exit status of each process out

The libraries are loaded once; each process of a run is a fork. A point is a write to the journal (`before model/1
begun`, `after tool/2.1 done`), the first text of an answer that arrives (`stream model/2`), or one that the driver
reaches: the provider has a request, a server is about to execute a call or has executed it.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import ssl
import sys
import threading
from pathlib import Path

import toolway.agents.agent as agent_module
from tests.workflows.kill_runner import effect_server
from tests.workflows.point_journal import PointJournal
from toolway import Hub
from toolway.agents import Agent, Budget
from toolway.types import Json
from toolway.workflows.journal import FINAL_STATES, RunsInUse

OUTPUT = {"type": "object", "properties": {"paid": {"type": "integer"}}, "required": ["paid"]}
START_TRIES = 400


async def live(job: Json) -> None:
    """Start the run of a job, or continue it, until it has ended. Approve what it asks. Write its end to a file."""
    folder = Path(job["folder"])
    (folder / "pid").write_text(str(os.getpid()))
    points = (folder / "points").open("a")

    asking = ""  # the model request in flight

    def reach(point: str) -> None:
        nonlocal asking
        points.write(f"{point}\n")
        if point.startswith("after model/") and point.endswith("begun"):
            asking = point.split()[1]
        if point == job["point"]:
            points.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    agent_module.SqliteJournal = functools.partial(PointJournal, reach=reach)  # type: ignore[attr-defined,assignment]
    async with Hub({"s": effect_server(folder)}) as hub:
        agent = Agent(
            job["model"],
            hub,
            base_url=job["url"],
            approve=["s.pay"] if job["approve"] else "none",
            budget=Budget(**job["budget"]),
            max_tokens=1500,  # bounds the length of an answer that is lost
            output=OUTPUT,
            prices={job["model"]: (1000.0, 1000.0)},  # USD for a million tokens
            stream=job["stream"],
            journal=folder / "runs.db",
        )
        agent._log.add_text = lambda run, text: reach(f"stream {asking}")  # type: ignore[method-assign]
        async with agent:
            run = await agent.start("Pay it", key="the-run")
            while (record := await run.wait()).state not in FINAL_STATES:
                for question in record.asks:
                    await run.approve(question["path"], by="ann")
                while record.asks == (await run.status()).asks:
                    await asyncio.sleep(0.01)
            body = {"state": record.state, "output": record.output, "error": record.error}
            (folder / "end").write_text(json.dumps(body))
    points.close()


async def live_when_free(job: Json) -> None:
    """Live as soon as the servers of the process before have ended: until then the journal is in use."""
    for _ in range(START_TRIES):
        try:
            return await live(job)
        except RunsInUse:
            await asyncio.sleep(0.02)
    raise TimeoutError("the journal stays in use")


def main() -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        os.environ[name] = "none"
    ssl.create_default_context = functools.cache(ssl.create_default_context)  # type: ignore[assignment]  # no connection here uses TLS
    for line in sys.stdin:
        job = json.loads(line)
        if job["is_first"]:  # in this process, so all modules are loaded before the forks
            asyncio.run(live(job))
            for thread in threading.enumerate():  # a process with threads cannot be forked safely
                if thread is not threading.main_thread():
                    thread.join(30)
                    assert not thread.is_alive(), thread
            print(0, flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                asyncio.run(live_when_free(job))
                code = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
