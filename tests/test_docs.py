"""The documentation keeps step with the source, and its examples run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CODE = re.compile(r"\bE-[A-Z0-9]+(?:-[A-Z0-9]+)*\b")
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def python(*words):
    """Run Python as a user would: from the top of the repository, with the `python` of this environment on PATH."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60
    )


def codes_in_source():
    files = [f for f in (ROOT / "src" / "toolway").rglob("*.py") if "testing" not in f.parts]
    quoted = re.compile(rf'"({CODE.pattern})"')
    return {code for file in files for code in quoted.findall(file.read_text())}


def test_every_error_code_is_explained_and_none_is_explained_that_does_not_exist():
    rows = re.findall(rf"^\| `({CODE.pattern})` \|", (ROOT / "docs/reference/errors.md").read_text(), re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == codes_in_source()


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


def test_the_first_example_fits_in_ten_lines_and_prints_what_the_readme_says():
    assert len((ROOT / "examples/first.py").read_text().splitlines()) <= 10
    assert python("examples/first.py").stdout == "3\n"


def test_the_group_of_the_guide_is_that_of_the_example_file_which_can_be_used():
    from toolway.config.formats import read

    file = ROOT / "examples/gateway.json"
    shown = re.search(r'```json\n("toolway": .*?)```', (ROOT / "docs/howto/gateway.md").read_text(), re.DOTALL)
    assert shown is not None
    groups = json.loads("{" + shown[1] + "}")["toolway"]["groups"]
    assert groups == json.loads(file.read_text())["toolway"]["groups"]
    loaded = read(file)
    assert (loaded.problems, list(loaded.gateway.groups)) == ((), ["sums"])


def test_every_code_of_the_gateway_is_explained():
    from toolway.gateway import codes

    own = {value for value in vars(codes).values() if isinstance(value, int)}
    rows = re.findall(r"^\| (-31\d{3}) \| \d{3} \| \S", (ROOT / "docs/reference/errors.md").read_text(), re.MULTILINE)
    assert {int(row) for row in rows} == own
    assert len(own) == 13


def test_links_between_pages_lead_somewhere():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages
        for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())
        if not (page.parent / link).exists()
    ]
    assert broken == []
