"""A client layer: call tools, check health, run a workflow, and let a model work, all with the same servers."""

import asyncio

from toolway import Hub
from toolway.agents import AgentRunner
from toolway.testing import FakeHttp, FakeLLM, ToolUse, Turn
from toolway.workflows import WorkflowEngine


async def main() -> None:
    async with FakeHttp() as github:
        servers = [
            {
                "name": "github",
                "endpoint": github.url,
                "enabled": True,
                "timeoutMs": 30000,
                "maxRetries": 5,
                "retryDelayMs": 1000,
                "backoffMultiplier": 2,
            }
        ]
        async with Hub(servers) as hub:
            issue = await hub.call_tool("github.add", {"a": 122, "b": 1})
            print(issue.data["sum"])  # 123
            print((await hub.check_health("github")).ok)  # True

            workflow = {
                "name": "greet",
                "steps": [
                    {"name": "read", "tool": "github.echo", "params": {"text": "octocat"}},
                    {"name": "reply", "tool": "github.echo", "params": {"text": "Hello, ${steps.read.data.text}"}},
                ],
                "outputs": {"text": "${steps.reply.data.text}"},
            }
            result = await WorkflowEngine(hub).execute(workflow)
            print(result["status"], result["output"])  # completed {'text': 'Hello, octocat'}

            with FakeLLM([Turn("I add them.", [ToolUse("github__add", {"a": 1, "b": 2})]), "It is 3."]) as llm:
                runner = AgentRunner(hub)
                answer = await runner.execute(
                    prompt="What is 1 + 2?",
                    tools=await runner.load_tools(["github"]),
                    provider="openai-chat",
                    model="gpt-4o",
                    base_url=llm.openai_url,
                )
            print(answer["response"])  # It is 3.


asyncio.run(main())
