"""The documentation keeps step with the source, and its examples run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_every_error_code_has_a_page_and_no_page_is_about_another():
    assert {page.stem for page in ERRORS.glob("E-*.md")} == codes_in_source()


@pytest.mark.parametrize("page", sorted(ERRORS.glob("E-*.md")), ids=lambda page: page.stem)
def test_a_page_says_what_it_means_why_it_happens_and_how_to_fix_it(page):
    title, meaning, *rest = page.read_text().rstrip("\n").split("\n\n")
    assert title == f"# {page.stem}"
    assert re.fullmatch(r"[^\n#-][^\n]{15,118}\.", meaning)
    assert rest[0::2] == ["## What it means", "## Why it happens", "## How to fix it"]
    assert all(len(text) > 10 for text in rest[1::2])
    assert all(line.startswith("- ") for text in rest[3::2] for line in text.splitlines())


def test_commands_on_the_pages_of_errors_exist():
    from toolway.cli.table import COMMANDS

    text = "\n".join(page.read_text() for page in ERRORS.glob("*.md"))
    named = set(re.findall(r"`toolway ([a-z][a-z-]*)", text))
    assert named > {"doctor", "secrets", "config", "explain"}
    assert named <= COMMANDS.keys()


def test_the_generated_pages_are_up_to_date():
    result = python("scripts/generate_docs.py", "--check")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("example", ["first.py", "calls.py"])
def test_the_readme_shows_the_examples_as_they_are(example):
    assert f"```python\n{(ROOT / 'examples' / example).read_text()}```" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_run(example):
    result = python(str(example))
    assert (result.returncode, result.stderr) == (0, "")


def test_the_guide_to_telemetry_shows_what_its_example_prints():
    printed = re.sub(r"\d\.\d s", "0.2 s", python("examples/slow_calls.py").stdout)  # longer on a busy machine
    assert f"```text\n{printed}```" in (ROOT / "docs/howto/telemetry.md").read_text()


def test_the_guide_to_middleware_shows_its_example_and_what_it_prints():
    source, page = (ROOT / "examples/middleware.py").read_text(), (ROOT / "docs/howto/middleware.md").read_text()
    assert len(source.splitlines()) <= 20
    assert f"```python\n{source}```" in page
    assert f"```text\n{python('examples/middleware.py').stdout}```" in page


def test_the_first_example_fits_in_ten_lines_and_prints_what_the_readme_says():
    assert len((ROOT / "examples/first.py").read_text().splitlines()) <= 10
    assert python("examples/first.py").stdout == "3\n"


def test_the_group_of_the_guide_is_that_of_the_example_file_which_can_be_used():
    from toolway.config.loader import load_file

    file = ROOT / "examples/gateway.json"
    shown = re.search(r'```json\n("toolway": .*?)```', (ROOT / "docs/howto/gateway.md").read_text(), re.DOTALL)
    assert shown is not None
    groups = json.loads("{" + shown[1] + "}")["toolway"]["groups"]
    assert groups == json.loads(file.read_text())["toolway"]["groups"]
    loaded = load_file(file)
    assert (loaded.issues, list(loaded.gateway.groups)) == ((), ["sums"])


@pytest.mark.promise("D22")
def test_every_code_of_the_gateway_is_explained():
    from toolway.gateway.mcp import errors

    own = {value for value in vars(errors).values() if isinstance(value, int) and -32000 < value < -31000}
    rows = re.findall(r"^\| (-31\d{3}) \| \d{3} \| \S", (ROOT / "docs/reference/errors.md").read_text(), re.MULTILINE)
    assert {int(row) for row in rows} == own
    assert len(own) == 16


def test_the_screens_keep_to_80_columns_and_are_all_on_their_page():
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


def test_links_between_pages_lead_somewhere():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages
        for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())
        if not (page.parent / link).exists()
    ]
    assert broken == []
