"""The report as users read it."""

from dataclasses import dataclass

from toolway.doctor.report import Check, Report, SubjectReport, render_report, split_hint


@dataclass(frozen=True)
class Repair:
    description: str = "mend it"

    def apply(self):
        return "mended"


def shown(report, **options):
    return [line.text for line in render_report(report, 80, **options)]


GITHUB = SubjectReport(
    "server",
    "github",
    (
        Check("config", "ok", "valid"),
        Check("command", "ok", "npx → /home/me/.nvm/versions/node/v22.1.0/bin/npx (node v22.1.0)"),
        Check(
            "env",
            "fail",
            "the variable GITHUB_TOKEN is not set",
            "env.GITHUB_TOKEN uses ${GITHUB_TOKEN}, which is passed on as it is written",
            "set it",
            "export GITHUB_TOKEN=…",
            "E-CONFIG-VARIABLE",
        ),
        Check("start", "fail", "the server ended with exit code 1", "| Error: missing token", code="E-STDIO-EXIT"),
        Check("handshake", "skip", "not reached"),
    ),
    "stdio",
    "npx -y @modelcontextprotocol/server-github",
    "/home/me/.cursor/mcp.json:3",
)


def test_server_report_shows_all_checks():
    report = Report((GITHUB,)).with_tilde("/home/me")
    assert shown(report, rerun_command="toolway doctor github") == [
        "✗ github: the variable GITHUB_TOKEN is not set (and 1 more problem)",
        "",
        "github   stdio   npx -y @modelcontextprotocol/server-github",
        "  from ~/.cursor/mcp.json:3",
        "  ✓ config     valid",
        "  ✓ command    npx → ~/.nvm/versions/node/v22.1.0/bin/npx (node v22.1.0)",
        "  ✗ env        the variable GITHUB_TOKEN is not set",
        "               env.GITHUB_TOKEN uses ${GITHUB_TOKEN}, which is passed on as it",
        "                 is written",
        "               → set it",
        "                 export GITHUB_TOKEN=…",
        "               more: toolway explain E-CONFIG-VARIABLE",
        "  ✗ start      the server ended with exit code 1",
        "               | Error: missing token",
        "               more: toolway explain E-STDIO-EXIT",
        "  – handshake  not reached",
        "",
        "Fix 2 problems, then run: toolway doctor github",
    ]


def test_failures_come_before_warnings():
    warned = SubjectReport("file", "mcp.json", (Check("file", "warn", "odd"),))
    assert Report((warned, GITHUB)).first_line.startswith("github: the variable")
    failed = SubjectReport("file", "mcp.json", (Check("file", "fail", "broken"),))
    assert Report((failed, GITHUB)).first_line == "mcp.json: broken (and 2 more problems)"


def test_text_to_copy_is_never_wrapped():
    copy = 'export A="' + "x" * 100 + '"'
    report = Report((SubjectReport("server", "a", (Check("env", "fail", "x", hint="do", copy=copy),)),))
    assert f"  {copy}" in shown(report)


def test_valid_file_is_shown_only_with_verbose():
    fine = SubjectReport("file", "mcp.json", (Check("file", "ok", "1 server"),))
    report = Report((fine, GITHUB))
    assert not any("mcp.json" in line for line in shown(report)[1:] if "from" not in line)
    assert any(line.startswith("mcp.json") for line in shown(report, verbose=True))


def test_automatic_fixes_are_offered_once():
    checks = (Check("file", "warn", "a", auto_fix=Repair()), Check("file", "warn", "b", auto_fix=Repair()))
    report = Report((SubjectReport("file", "mcp.json", checks),))
    assert shown(report)[-1] == "Automatic fixes available (1): toolway doctor --fix"


def test_empty_and_ok_reports_have_a_summary():
    assert shown(Report()) == ["✓ no server to check"]
    well = SubjectReport("server", "a", (Check("config", "ok", "valid"),))
    assert Report((well,)).first_line == "a: no problem found"
    assert Report((well, well)).first_line == "no problem found: 2 servers"
    off = SubjectReport("server", "b", (Check("start", "skip", "disabled"),))
    assert Report((well, off)).first_line == "no problem found: 2 servers, 1 of them not started"


def test_secrets_are_masked_before_wrapping():
    long = "token " + "word " * 12 + "SECRET-" + "x" * 30
    report = Report((SubjectReport("server", "a", (Check("env", "fail", long),), location=f"run {long}"),))
    text = "\n".join(shown(report.apply_mask(lambda said: said.replace("SECRET-" + "x" * 30, "***"))))
    assert "xxx" not in text


def test_hint_is_split_into_text_and_copy():
    assert split_hint('add it to the server\'s entry: "env": {"A": "${A}"}') == (
        "add it to the server's entry",
        '"env": {"A": "${A}"}',
    )
    assert split_hint("install uv: pip install uv") == ("install uv", "pip install uv")
    assert split_hint("check network, VPN and the address in the server's entry")[1] == ""
