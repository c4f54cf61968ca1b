"""The examples of docs/adapters run as they are, against a `FakeLLM`, and their pages show them."""

from __future__ import annotations

import asyncio
import os
import runpy
import sys
from pathlib import Path

import pytest

from tests.adapters.loops import LOOPS
from tests.adapters.scenarios import results_of
from tests.adapters.test_loops import missing_module
from toolway.testing import FakeLLM, ToolUse, Turn

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples" / "adapters").glob("with_*.py"))
MODULES = {name.replace("-", "_"): modules for name, (_, modules) in LOOPS.items()}
MODULES["openai"] = ("openai",)
FINAL = "1 + 2 is 3."


def final_turn(name: str) -> Turn | str:
    return Turn(calls=[ToolUse("final_answer", {"answer": FINAL})]) if name == "smolagents" else FINAL


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(
    example: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    name = example.stem.removeprefix("with_")
    missing = missing_module(MODULES[name])
    if missing:
        pytest.skip(f"{missing} is not installed: make clients ARGS=adapters")
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    with FakeLLM([Turn(calls=[ToolUse("demo__add", {"a": 1, "b": 2})]), final_turn(name)]) as llm:
        for provider, url in (("OPENAI", llm.openai_url), ("ANTHROPIC", llm.anthropic_url)):
            monkeypatch.setenv(f"{provider}_BASE_URL", url)
            monkeypatch.setenv(f"{provider}_API_KEY", "none")
        monkeypatch.setenv("OPENAI_API_BASE", llm.openai_url)  # LlamaIndex
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", llm.gemini_url)
        monkeypatch.setenv("GOOGLE_API_KEY", "none")
        monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
        try:
            runpy.run_path(str(example), run_name="__main__")
        finally:
            asyncio.set_event_loop(None)
    assert FINAL in capsys.readouterr().out
    assert [each.text for each in results_of(llm)][:1] == ["3"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_framework_page_shows_its_example(example: Path) -> None:
    source = example.read_text()
    page = ROOT / "docs" / "adapters" / f"{example.stem.removeprefix('with_').replace('_', '-')}.md"
    assert len(source.splitlines()) <= 20
    assert f"```python\n{source}```" in page.read_text()
