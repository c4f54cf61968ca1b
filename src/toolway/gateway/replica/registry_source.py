"""A file of configuration → what the record keeps of it, and what the record keeps → `Loaded`, as from a file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping

import msgspec

from toolway.config import jsonc
from toolway.config.formats import OUR_BLOCK, ROOT_KEYS, Loaded, content, entries_of, parse, text_of
from toolway.model import Json


def document_of(file: str) -> tuple[Json, str]:
    """What a file says, in the one form that the record knows, and the digest of what it means: spaces and comments
    make no other file. Variables stay as they are written; each node has its own. Raises `ConfigError`."""
    found = jsonc.parse(text_of(content(file), file), file)
    _, entries = entries_of(found, file)
    block = found.value.get(OUR_BLOCK)
    document = {ROOT_KEYS[0]: entries} | ({OUR_BLOCK: block} if block else {})
    return document, hashlib.sha256(msgspec.json.encode(document, order="deterministic")).hexdigest()


def loaded_of(document: Json, where: str, variables: Mapping[str, str] | None = None) -> Loaded:
    """The servers of a document, and what is wrong with others. `where` is said to people. Raises `ConfigError`."""
    return parse(json.dumps(document), where, os.environ if variables is None else variables)
