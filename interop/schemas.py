"""Check the definitions of all tools of the corpus: schemas can be evaluated, and no content rule holds one.

`--write` stores the schemas for the tests.

    python interop/schemas.py --installed DIR [--only-callable] [--servers FILE] [--write]

Stored schemas have no descriptions, titles, examples and defaults: they do not change what is valid.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import corpus
import direct

from toolway.catalog.pin_review import PinReview
from toolway.protocol.json_schema import SchemaValidator

STORED = Path(__file__).resolve().parents[1] / "tests" / "protocol" / "real_schemas.json.gz"
_TEXT_KEYWORDS = ("description", "title", "examples", "example", "default", "$comment", "markdownDescription")
_NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_DATA_KEYWORDS = ("enum", "const", "required")


def main() -> int:
    options = _options()
    if not options.servers.exists():
        print(f"skipped: {options.servers.name} does not exist: no corpus to list")
        return 0
    packages = corpus.read_packages(options.servers, only_callable=options.only_callable)
    found: dict[str, dict[str, Any]] = {}
    failed: list[str] = []
    review = PinReview({}, lambda server: "hold", time.time)  # on a first list, only the content rules hold a tool
    held = 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        for server in corpus.load(packages, installed=options.installed, work=Path(work)):
            corpus.make_work(server.work)
            try:
                tools = direct.list_tools(server, server.era)
            except (OSError, direct.DirectError) as error:
                failed.append(f"{server.name}: {error}")
                continue
            found[server.name] = {tool["name"]: without_texts(tool["inputSchema"]) for tool in tools}
            reasons = {tool["name"]: SchemaValidator(tool["inputSchema"]).skip_reason for tool in tools}
            failed += [f"{server.name}.{name}: {reason}" for name, reason in reasons.items() if reason]
            for name, deviation in review.review(server.name, "tools", {tool["name"]: tool for tool in tools}).items():
                held += 1
                failed.append(f"{server.name}.{name} is held: {deviation.findings if deviation else ''}")
    count = sum(map(len, found.values()))
    print(f"{count} schemas of {len(found)} servers, {held} definitions held, {len(failed)} problems")
    print("\n".join(failed), file=sys.stderr)
    if options.write:
        STORED.write_bytes(gzip.compress(json.dumps(found, sort_keys=True).encode(), mtime=0))
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--installed", type=Path, required=True, metavar="DIR")
    parser.add_argument("--only-callable", action="store_true", help="only the servers with a call")
    parser.add_argument("--servers", type=Path, default=corpus.DEFAULT_SERVERS, metavar="FILE")
    parser.add_argument("--write", action="store_true", help=f"write {STORED.name}")
    return parser.parse_args()


def without_texts(schema: Any) -> Any:
    """Return a schema without the keywords that only describe."""
    if isinstance(schema, list):
        return [without_texts(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in _NAMED_SCHEMAS and isinstance(value, dict):
            kept[keyword] = {name: without_texts(each) for name, each in value.items()}
        elif keyword in _DATA_KEYWORDS:
            kept[keyword] = value
        elif keyword not in _TEXT_KEYWORDS:
            kept[keyword] = without_texts(value)
    return kept


if __name__ == "__main__":
    sys.exit(main())
