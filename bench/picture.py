"""A picture of a result: CPU-µs of a call, one bar for each, by logarithm. Plain SVG."""

from __future__ import annotations

import math
from html import escape

from bench.journal import Result
from bench.words import short

_BAR, _GAP, _LEFT, _WIDTH = 18, 6, 210, 760


def picture(result: Result) -> str:
    """CPU-µs of one call by logarithm: one bar a peer, for HTTP and for stdio servers."""
    parts, top = [], 10
    for kind in ("http", "stdio"):
        bars = _bars(result, kind)
        if bars:
            drawn, top = _chart(f"CPU-µs a call, {kind} server, echo, 16 connections (shorter is better)", bars, top)
            parts.append(drawn)
    style = "text{font:13px sans-serif;fill:#333}.own{fill:#0a7d5a}.limit{fill:#999}.peer{fill:#4a78b8}"
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{top}" viewBox="0 0 {_WIDTH} {top}">\n'
        f'<style>{style}</style>\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def _bars(result: Result, kind: str) -> list[tuple[str, str, float]]:
    best: dict[str, float] = {}
    for row in result["rows"]:
        if (row["behind"], row["work"], row["connections"]) == (kind, "echo", 16) and row.get("cpu_us"):
            best[row["peer"]] = min(best.get(row["peer"], row["cpu_us"]), row["cpu_us"])
    kinds = {"toolway": "own", "nginx": "limit", "bare": "limit"}
    bars = [(result["peers"][name]["title"], kinds.get(name, "peer"), value) for name, value in best.items()]
    return sorted(bars, key=lambda bar: bar[2])


def _chart(title: str, bars: list[tuple[str, str, float]], top: int) -> tuple[str, int]:
    low, high = math.log10(min(bar[2] for bar in bars) / 2), math.log10(max(bar[2] for bar in bars))
    drawn = [f'<text x="10" y="{top + 14}" font-weight="bold">{escape(title)}</text>']
    top += 28
    for name, kind, value in bars:
        wide = (math.log10(value) - low) / max(high - low, 0.1) * (_WIDTH - _LEFT - 90)
        drawn.append(f'<text x="{_LEFT - 8}" y="{top + 14}" text-anchor="end">{escape(name)}</text>')
        drawn.append(f'<rect class="{kind}" x="{_LEFT}" y="{top}" width="{wide:.0f}" height="{_BAR}"/>')
        drawn.append(f'<text x="{_LEFT + wide + 6:.0f}" y="{top + 14}">{short(value)}</text>')
        top += _BAR + _GAP
    return "\n".join(drawn), top + 14
