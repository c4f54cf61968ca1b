"""Numbers, latencies and tables as text for reports."""

from __future__ import annotations

from bench.journal import Row


def short(value: float) -> str:
    """Format a number without decimals from 100 on, else with one."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def cell(row: Row | None) -> str:
    """Format calls per second and, in brackets, CPU-µs per call."""
    if row is None:
        return "–"
    if not row.get("rate"):
        return "none finished"
    cpu = f" ({short(row['cpu_us'])})" if row.get("cpu_us") else ""
    return f"{short(row['rate'])}{cpu}"


def times(row: Row | None) -> str:
    """Format p50 and p99 in milliseconds."""
    return f"{row['p50']:.2f} / {row['p99']:.2f}" if row and row.get("p50") else "–"


def title(about: dict[str, str]) -> str:
    """Return the title and version of a peer."""
    return f"{about['title']} {about['version']}".strip()


def markdown(head: list[str], rows: list[list[str]], right: bool = True) -> str:
    """Format a Markdown table; `right` aligns all columns but the first to the right."""
    lines = [head, ["---", *("---:" if right else "---" for _ in head[1:])], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
