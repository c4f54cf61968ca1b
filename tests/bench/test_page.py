"""The benchmark page: figures, settings, and the cases in which another peer is better."""

import json
import re
import xml.etree.ElementTree as ET

from bench import page, report

PEERS = {
    name: {"title": name.title(), "version": "1", "given": f"settings of {name}"}
    for name in ("direct", "bare", "toolway", "envoy", "litellm")
}
PACE = {"turns": 3, "warm": 0.2, "seconds": 0.8, "longest": 8.0}


def cell(peer, work="echo", behind="http", connections=16, **figures):
    place = {"peer": peer, "behind": behind, "work": work, "era": "modern", "connections": connections}
    return {**place, "errors": 0, "turns": 3, **figures}


def result(*rows):
    machine = dict.fromkeys(("cpu", "cores", "system", "python", "uvloop", "commit", "pinned"), "X")
    settings = {"swift": PACE, "others": {**PACE, "turns": 1}}
    return {
        "date": "2026-11-15",
        "machine": machine,
        "settings": settings,
        "peers": PEERS,
        "absent": {},
        "rows": list(rows),
    }


RATES = (
    cell("bare", rate=50000.0, cpu_us=20.0, p50=0.3, p99=0.6, rss_mb=27.0),
    cell("toolway", rate=20000.0, cpu_us=50.0, p50=0.7, p99=1.2, rss_mb=80.0),
    cell("envoy", rate=10000.0, cpu_us=45.0, p50=1.5, p99=2.0, rss_mb=70.0),
    cell("litellm", rate=20.0, cpu_us=50000.0, p50=50.0, p99=90.0, rss_mb=300.0, errors=3, said="HTTP/1.1 500"),
)


def section(text, title):
    return re.split(r"^## ", text, flags=re.MULTILINE)[[*re.findall(r"^## (.*)$", text, re.MULTILINE)].index(title) + 1]


def test_page_and_chart_match_the_published_figures():
    there = [path.exists() for path in (page.PUBLISHED, page.PAGE, page.CHART)]
    assert len(set(there)) == 1, "publish with `make bench ARGS=--publish`"
    if all(there):
        published = json.loads(page.PUBLISHED.read_text())
        assert page.PAGE.read_text() == page.page(published)
        assert page.CHART.read_text() == report.chart(published)
        assert page.PUBLISHED.read_text() == page.as_text(published)


def test_figures_are_written_one_row_per_line():
    text = page.as_text(result(*RATES))
    assert json.loads(text) == result(*RATES)
    assert sum(line.startswith('{"peer"') for line in text.splitlines()) == len(RATES)


def test_cell_contains_calls_per_second_and_cpu():
    text = page.page(result(*RATES))
    assert "| Toolway 1 | 20,000 (50.0) | 0.70 / 1.20 | 80 | 0 |" in text
    assert "| Litellm 1 | 20.0 (50,000) | 50.00 / 90.00 | 300 | 3 |" in text


def test_page_lists_settings_of_each_peer():
    assert "| Envoy 1 | settings of envoy |" in section(page.page(result(*RATES)), "How the peers are set up")


def test_peer_better_by_either_figure_is_listed():
    wins = section(page.page(result(*RATES)), "Where another peer is better")
    assert "- Envoy: echo × 16, modern client, http: 10,000 (45.0) against 20,000 (50.0)" in wins
    assert "Litellm:" not in wins
    assert "Bare:" not in wins


def test_peer_with_faster_start_or_less_memory_is_listed():
    starts = [
        cell("toolway", "first call", connections=1, seconds=0.9),
        cell("toolway", "memory", connections=1, mb=80.0),
    ]
    starts += [cell("envoy", "first call", connections=1, seconds=0.1), cell("envoy", "memory", connections=1, mb=90.0)]
    wins = section(page.page(result(*starts)), "Where another peer is better")
    assert "- Envoy: first result after 0.10 s against 0.90 s" in wins
    assert "idle memory" not in wins


def test_failures_are_listed_with_their_first_error():
    failures = section(page.page(result(*RATES, cell("envoy", "list", rate=0.0))), "Failures")
    assert "- litellm: echo × 16, modern client, http: 3 errors: HTTP/1.1 500" in failures
    assert "- envoy: list × 16, modern client, http: none finished" in failures


def test_peer_that_could_not_be_installed_is_named():
    assert "- zed could not be installed for this run: no wheel" in page.page(
        {**result(), "absent": {"zed": "no wheel"}}
    )


def test_chart_is_svg_with_cheapest_peer_first():
    chart = ET.fromstring(report.chart(result(*RATES)))
    bars = [float(one.get("width", "")) for one in chart.iter("{http://www.w3.org/2000/svg}rect") if one.get("class")]
    assert len(bars) == 4
    assert bars == sorted(bars)
    words = [one.text for one in chart.iter("{http://www.w3.org/2000/svg}text")]
    assert words.index("Bare") < words.index("Envoy") < words.index("Toolway") < words.index("Litellm")


def test_line_is_printed_for_every_kind_of_row():
    assert report.line(cell("envoy", "first call", seconds=0.5)).endswith(": 0.500 s")
    assert report.line(cell("envoy", "memory", mb=70.0)).endswith(": 70.00 MB")
    assert report.line(cell("envoy", failed="it did not start")).endswith("FAILED it did not start")
    spoiled = cell("envoy", rate=5.0, p50=1.0, p99=2.0, cpu_us=3.0, first_error="HTTP/1.1 500")
    assert report.line({**spoiled, "errors": 2}).endswith("2 errors: HTTP/1.1 500")
