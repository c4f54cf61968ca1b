"""The documentation keeps step with the source, and its examples run."""

import importlib
import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

import toolway
import toolway.part_api

ROOT = Path(__file__).resolve().parent.parent
ERRORS = ROOT / "docs" / "errors"
CODE = re.compile(r"\bE-[A-Z0-9]+(?:-[A-Z0-9]+)*\b")
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def python(*words):
    """Run Python as a user would: from the top of the repository, with the `python` of this environment on PATH."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60
    )


def codes_in_source():
    """Every code that is written in the source; the beginning of codes that something is compared with is none."""
    files = [f for f in (ROOT / "src" / "toolway").rglob("*.py") if "testing" not in f.parts]
    quoted = re.compile(rf'(?<!startswith\()"({CODE.pattern})"')
    return {code for file in files for code in quoted.findall(file.read_text())}


def test_error_codes_and_error_pages_match():
    assert {page.stem for page in ERRORS.glob("E-*.md")} == codes_in_source()


@pytest.mark.parametrize("page", sorted(ERRORS.glob("E-*.md")), ids=lambda page: page.stem)
def test_error_page_has_its_sections(page):
    title, meaning, *rest = page.read_text().rstrip("\n").split("\n\n")
    assert title == f"# {page.stem}"
    assert re.fullmatch(r"[^\n#-][^\n]{15,118}\.", meaning)
    assert rest[0::2] == ["## What it means", "## Why it happens", "## How to fix it"]
    assert all(len(text) > 10 for text in rest[1::2])
    assert all(line.startswith("- ") for text in rest[3::2] for line in text.splitlines())


def test_commands_on_error_pages_exist():
    from toolway.cli.table import COMMANDS

    text = "\n".join(page.read_text() for page in ERRORS.glob("*.md"))
    named = set(re.findall(r"`toolway ([a-z][a-z-]*)", text))
    assert named > {"doctor", "secrets", "config", "explain"}
    assert named <= COMMANDS.keys()


def test_generated_pages_are_up_to_date():
    result = python("scripts/generate_docs.py", "--check")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("example", ["first.py", "calls.py"])
def test_readme_shows_the_examples(example):
    assert f"```python\n{(ROOT / 'examples' / example).read_text()}```" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_run(example):
    result = python(str(example))
    assert (result.returncode, result.stderr) == (0, "")


def test_telemetry_guide_shows_output_of_its_example():
    printed = re.sub(r"\d\.\d s", "0.2 s", python("examples/slow_calls.py").stdout)  # longer on a busy machine
    assert f"```text\n{printed}```" in (ROOT / "docs/howto/monitoring.md").read_text()


def test_middleware_guide_shows_its_example_and_output():
    source, page = (ROOT / "examples/middleware.py").read_text(), (ROOT / "docs/howto/middleware.md").read_text()
    assert len(source.splitlines()) <= 20
    assert f"```python\n{source}```" in page
    assert f"```text\n{python('examples/middleware.py').stdout}```" in page


@pytest.mark.user_trial("23")
def test_testing_guide_shows_tests_that_pass():
    page = (ROOT / "docs/howto/test-your-code.md").read_text()
    folder = ROOT / "examples/testing"
    for name in ("orders.py", "test_orders.py"):
        assert f"```python\n{(folder / name).read_text()}```" in page
    words = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"]
    result = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0 and "5 passed" in result.stdout, result.stdout + result.stderr


@pytest.mark.user_trial("25")
def test_new_server_guide_shows_the_transport_example():
    source, mark, _ = (ROOT / "examples/own_transport.py").read_text().partition("\n\n# -- the rest")
    assert mark and f"```python\n{source.rstrip()}\n```" in (ROOT / "docs/howto/new-server.md").read_text()
    assert python("examples/own_transport.py").stdout == "HELLO\n"


PUBLIC = ("toolway", "toolway.testing", "toolway.part_api")


def public_names(module):
    """The names that a program may import from a module of ours; none if the module is internal."""
    if module == "toolway.adapters":
        return {file.stem for file in (ROOT / "src/toolway/adapters").glob("*.py")}
    if module == "toolway.workflows.temporal":
        return {"TemporalWorkflows"}  # cannot be imported without Temporal
    if module in ("toolway.agents", "toolway.workflows"):  # may need an extra: read, not imported
        source = (ROOT / "src" / module.replace(".", "/") / "__init__.py").read_text()
        return set(re.findall(r" import (\w+) as \1$", source, re.MULTILINE))
    return set(importlib.import_module(module).__all__) if module in PUBLIC else set()


def imports_of(text):
    """The imports from `toolway` in the Python snippets of a page, as (module, name)."""
    snippets = re.findall(r"^( *)```python\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    for indent, snippet in snippets:
        body = textwrap.dedent(snippet) if indent else snippet
        for line in re.findall(r"^ *from (toolway[\w.]*) import \(?((?:[^()\n#]|\n(?= ))+)", body, re.MULTILINE):
            yield from ((line[0], name.strip().split(" as ")[0]) for name in line[1].split(",") if name.strip())
    for module, names in re.findall(r"-c '.*?from (toolway[\w.]*) import ([\w, ]+)", text):
        yield from ((module, name.strip()) for name in names.split(","))


@pytest.mark.user_trial("23")
def test_every_import_on_pages_is_public():
    pages = [ROOT / "README.md", *(page for page in (ROOT / "docs").rglob("*.md") if "decisions" not in page.parts)]
    found = {(page.name, *each) for page in pages for each in imports_of(page.read_text())}
    assert len(found) > 40 and {"Hub", "FakeHttp", "ServerLog"} <= {name for _, _, name in found}
    wrong = {(page, module, name) for page, module, name in found if name not in public_names(module)}
    assert wrong == set()


@pytest.mark.user_trial("23")
def test_every_class_named_on_pages_is_public():
    """Names of our classes in snippets, such as `hub.events(CallFinished)`, without an import before them."""
    classes = set()
    for module in ("events", "errors", "types", "middleware/idempotency_sqlite", "config/schema", "upstream/transport"):
        text = (ROOT / f"src/toolway/{module}.py").read_text()
        classes |= set(re.findall(r"^class ([A-Z]\w+)", text, re.MULTILINE))
    public = {*toolway.__all__, *toolway.part_api.__all__}
    used = set()
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        if "decisions" in page.parts or page.name == "config.md":
            continue
        code = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
        code += re.findall(r"`(\w+\([^`]*\)|hub\.[^`]*|[A-Z]\w+(?:\.\w+)?)`", page.read_text())
        used |= {(page.name, name) for part in code for name in re.findall(r"\b[A-Z]\w+", part) if name in classes}
    assert {name for _, name in used} >= {"CallFinished", "ServerLog", "SqliteIdempotencyStore", "OutcomeUnknown"}
    assert {(page, name) for page, name in used if name not in public} == set()


@pytest.mark.parametrize("example", ["first.py", "calls.py"])
@pytest.mark.user_trial("26")
def test_readme_program_prints_its_comments_anywhere(example, tmp_path):
    """The README shows each printed line as a comment; the program runs without the checkout."""
    file = ROOT / "examples" / example
    done = subprocess.run([sys.executable, str(file)], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    shown = re.findall(r"^ *print\(.*\)  # (.*)$", file.read_text(), re.MULTILINE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-2:] == shown


def test_readme_and_its_first_program_are_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
    assert len((ROOT / "examples/first.py").read_text().splitlines()) <= 12


@pytest.mark.user_trial("32")
def test_start_page_program_prints_its_comment(tmp_path):
    program = re.findall(r"```python\n(.*?)```", (ROOT / "docs/index.md").read_text(), re.DOTALL)[0]
    (tmp_path / "first.py").write_text(program)
    done = subprocess.run([sys.executable, "first.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == re.findall(r"  # (.*)$", program, re.MULTILINE) == ["3"]


def test_install_page_lists_every_extra():
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = re.findall(r"^\| `([a-z]+)` \|", (ROOT / "docs/install.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(package["optional-dependencies"])


def test_tagline_is_the_same_everywhere():
    tagline = "One reliable way to call every MCP server."
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["description"] == tagline
    assert f"site_description: {tagline}\n" in (ROOT / "mkdocs.yml").read_text()
    assert f"\n**{tagline}**" in (ROOT / "README.md").read_text()
    assert f"\n\n{tagline} " in (ROOT / "docs/index.md").read_text()
    other = re.compile(
        r"(?i)\b(?:one|a single|the) (?:\w+ )?way to (?:call )?(?:every|all|any) MCP servers?\b[^\n]{0,30}"
    )
    suffixes = {".md", ".py", ".toml", ".yml", ".yaml", ".cff", ".txt", ".svg", ".html", ".tsx", ".ts", ".json"}
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True).stdout
    files = [ROOT / name for name in listed.splitlines() if Path(name).suffix in suffixes]
    lines = {
        f"{file.relative_to(ROOT)}: {found}"
        for file in files
        if file.is_file() and file != Path(__file__)
        for found in other.findall(file.read_text(encoding="utf-8", errors="replace"))
        if not found.startswith(tagline)
    }
    assert lines == set()


def test_toolset_of_the_guide_is_in_the_example_file():
    from toolway.config.loader import load_file

    file = ROOT / "examples/gateway.json"
    shown = re.search(r'```json\n("toolway": .*?)```', (ROOT / "docs/howto/toolsets.md").read_text(), re.DOTALL)
    assert shown is not None
    toolsets = json.loads("{" + shown[1] + "}")["toolway"]["toolsets"]
    assert toolsets == json.loads(file.read_text())["toolway"]["toolsets"]
    loaded = load_file(file)
    assert (loaded.issues, list(loaded.gateway.toolsets)) == ((), ["sums"])


@pytest.mark.promise("D22")
def test_every_gateway_error_code_is_explained():
    from toolway.gateway.mcp import errors

    own = {value for value in vars(errors).values() if isinstance(value, int) and -32000 < value < -31000}
    rows = re.findall(r"^\| (-31\d{3}) \| \d{3} \| \S", (ROOT / "docs/reference/errors.md").read_text(), re.MULTILINE)
    assert {int(row) for row in rows} == own
    assert len(own) == 16


def test_screens_fit_80_columns_and_are_on_their_page():
    folder = ROOT / "docs/screens"
    screens = sorted(folder.glob("*.txt"))
    assert {"toolway", "doctor", "tools", "call-progress"} <= {screen.stem for screen in screens}
    for screen in screens:
        lines = screen.read_text().splitlines()
        assert max(map(len, lines)) <= 80, screen.name
        assert lines[0].startswith("$ toolway"), screen.name
        assert "Traceback" not in screen.read_text()
    page = (folder / "index.md").read_text()
    assert all(f"({screen.name})" in page or screen.read_text().rstrip() in page for screen in screens)


def test_lifecycle_table_and_picture_show_every_transition():
    from toolway.upstream.state import TRANSITIONS, StateEvent

    page, picture = (ROOT / "docs/explanation" / name for name in ("upstream-life.md", "lifecycle.svg"))
    rows = re.findall(r"^\| `(\w+)` \| ([\w ]+) \| `(\w+)` \|$", page.read_text(), re.MULTILINE)
    assert rows == [(state, event, after) for state, events in TRANSITIONS.items() for event, after in events.items()]
    starts = [event for state in list(TRANSITIONS)[:5] for event in TRANSITIONS[state] if event is not StateEvent.STOP]
    assert sorted(re.findall(r'class="event".*?>([\w ]+)<', picture.read_text())) == sorted(starts)


@pytest.mark.user_trial("31")
def test_pages_load_nothing_from_a_public_address():
    """Scripts, styles and pictures are in the repository; only links lead elsewhere."""
    loaded = re.compile(r"""!\[[^]]*\]\(https?:|<(?:script|img|link|source|iframe)\b[^>]*["'=]https?:|```mermaid""")
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert [page.name for page in pages if loaded.search(page.read_text())] == []
    menu = (ROOT / "mkdocs.yml").read_text()
    assert re.findall(r"^extra_(?:css|javascript): *(.*)$", menu, re.MULTILINE) == ["[assets/console.css]"]
    assert "\n  font: false" in menu


def test_links_between_pages_are_valid():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages
        for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())
        if not (page.parent / link).exists()
    ]
    assert broken == []
