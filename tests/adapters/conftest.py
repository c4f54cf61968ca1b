"""Clients that a framework or an example leaves open are collected here, so no later test gets their warnings."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _collect_open_clients() -> Iterator[None]:
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    gc.freeze()  # else the next collection walks the modules of all frameworks again
