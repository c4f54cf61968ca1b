import anyio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from toolway import Hub

spans = InMemorySpanExporter()  # in a real program: OTLPSpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)


async def main() -> None:
    async with Hub("examples/mcp.json") as hub:
        hub.enable_tracing()  # uses the tracer provider of this program
        with trace.get_tracer("me").start_as_current_span("my work"):
            await hub.call_tool("demo.add", {"a": 1, "b": 2})


anyio.run(main)
for span in spans.get_finished_spans():
    print(span.kind.name, span.name)
