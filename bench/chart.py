"""SVG chart of a result: CPU-µs per call, one bar per peer, logarithmic scale."""

from __future__ import annotations

import math
from html import escape

from bench.formatting import short
from bench.journal import Result

_BAR, _GAP, _LEFT, _WIDTH = 18, 6, 210, 760


def chart(result: Result) -> str:
    """Return the chart as SVG: CPU-µs per call, for HTTP and for stdio servers."""
    parts, top = [], 10
    for kind in ("http", "stdio"):
        bars = _bars(result, kind)
        if bars:
            lines, top = _draw_bars(
                f"CPU-µs per call, {kind} server, echo, 16 connections (shorter is better)", bars, top
            )
            parts.append(lines)
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


def _draw_bars(title: str, bars: list[tuple[str, str, float]], top: int) -> tuple[str, int]:
    low, high = math.log10(min(bar[2] for bar in bars) / 2), math.log10(max(bar[2] for bar in bars))
    lines = [f'<text x="10" y="{top + 14}" font-weight="bold">{escape(title)}</text>']
    top += 28
    for name, kind, value in bars:
        width = (math.log10(value) - low) / max(high - low, 0.1) * (_WIDTH - _LEFT - 90)
        lines.append(f'<text x="{_LEFT - 8}" y="{top + 14}" text-anchor="end">{escape(name)}</text>')
        lines.append(f'<rect class="{kind}" x="{_LEFT}" y="{top}" width="{width:.0f}" height="{_BAR}"/>')
        lines.append(f'<text x="{_LEFT + width + 6:.0f}" y="{top + 14}">{short(value)}</text>')
        top += _BAR + _GAP
    return "\n".join(lines), top + 14
