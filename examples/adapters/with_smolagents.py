import os

from smolagents import OpenAIModel, ToolCallingAgent

from toolway import SyncHub
from toolway.adapters import smolagents

with SyncHub("examples/mcp.json") as hub:
    model = OpenAIModel("gpt-5", api_base=os.environ.get("OPENAI_BASE_URL"))
    agent = ToolCallingAgent(smolagents.tools(hub, "demo.*"), model, verbosity_level=0)
    print(agent.run("What is 1 + 2?"))
