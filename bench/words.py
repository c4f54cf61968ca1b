"""Figures as people read them."""

from __future__ import annotations

from bench.journal import Row


def short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def cell(row: Row | None) -> str:
    """Calls a second, and in brackets the CPU-µs of each."""
    if row is None:
        return "–"
    if not row.get("rate"):
        return "none finished"
    cpu = f" ({short(row['cpu_us'])})" if row.get("cpu_us") else ""
    return f"{short(row['rate'])}{cpu}"


def times(row: Row | None) -> str:
    return f"{row['p50']:.2f} / {row['p99']:.2f}" if row and row.get("p50") else "–"


def title(about: dict[str, str]) -> str:
    return f"{about['title']} {about['version']}".strip()


def markdown(head: list[str], rows: list[list[str]], right: bool = True) -> str:
    lines = [head, ["---", *("---:" if right else "---" for _ in head[1:])], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
