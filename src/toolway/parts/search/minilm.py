"""MiniLM, a small sentence model that runs on this machine with onnxruntime and `toolway-search-minilm`.

The model's files are verified by size and SHA-256 before they are loaded. The model embeds one text at a time, with one
thread, in a worker thread, so a query waits for at most one tool. Nothing is downloaded.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from toolway.parts.search.vector_store import EmbeddingError
from toolway.parts.search.vectors import Vector, to_unit_length
from toolway.parts.search.wordpiece import WordPiece

if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGE: Final = "toolway_search_minilm"
INSTALL_HINT: Final = "install toolway[search] and toolway-search-minilm"
_NO_TELEMETRY: Final = "ORT_DISABLE_TELEMETRY"  # it must be set before the import
MAX_TOKENS: Final = 128  # of a text; the rest is ignored


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's two files, with the size and SHA-256 they must have. See packages/toolway-search-minilm."""

    model_bytes: int = 23_546_293
    model_sha256: str = "0a9266b878ebe81f0c4d87a37d15e8d609aa2a6dcef853e3608c0bf59a8b686f"
    vocabulary_bytes: int = 231_508
    vocabulary_sha256: str = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"


MINILM: Final = ModelFiles()


class MiniLm:
    """Embedder using the MiniLM model on this machine, loaded in a worker thread on first use.

    Args:
        folder: Folder of model.onnx and vocab.txt; None finds the installed package.
        files: Size and SHA-256 that the files must have.
    """

    def __init__(self, folder: Path | None = None, files: ModelFiles = MINILM) -> None:
        self._folder = folder
        self._files = files
        self._worker = ThreadPoolExecutor(1, "toolway-search")
        self._run: Callable[[str], Vector] | None = None
        self._failure = ""  # why the model cannot be loaded; it is not tried again
        self._loaded = threading.Event()

    @property
    def identity(self) -> str:
        return f"minilm {self._files.model_sha256} {MAX_TOKENS}"

    async def embed(self, texts: Sequence[str], timeout: float) -> list[Vector]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                return [await loop.run_in_executor(self._worker, self._embed, text) for text in texts]
        except TimeoutError:
            reason = "the model took too long" if self._loaded.is_set() else "the model is being loaded"
            raise EmbeddingError(reason) from None
        except RuntimeError as exc:
            raise EmbeddingError("the search was closed") from exc

    async def close(self) -> None:
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _embed(self, text: str) -> Vector:
        if self._failure:
            raise EmbeddingError(self._failure)
        if self._run is None:
            try:
                self._run = self._load()
            except EmbeddingError as exc:
                self._failure = str(exc)
                raise
            finally:
                self._loaded.set()
        return self._run(text)

    def _load(self) -> Callable[[str], Vector]:
        folder, files = self._folder or _find_package(), self._files
        model = _read_verified(folder / "model.onnx", files.model_bytes, files.model_sha256)
        vocabulary = _read_verified(folder / "vocab.txt", files.vocabulary_bytes, files.vocabulary_sha256)
        onnxruntime = _import_onnxruntime()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        try:
            session: Any = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as exc:  # onnxruntime has one exception class per status, without a common base
            raise EmbeddingError(f"onnxruntime cannot load the model: {type(exc).__name__}") from exc
        words = vocabulary.decode().split("\n")
        tokenizer = WordPiece({word: number for number, word in enumerate(words)})

        def run(text: str) -> Vector:
            tokens = np.array(tokenizer.encode(text, MAX_TOKENS), np.int64)
            try:
                return to_unit_length(session.run(None, {"ids": tokens})[0])
            except Exception as exc:  # the same
                raise EmbeddingError(f"the model failed: {type(exc).__name__}") from exc

        return run


def _import_onnxruntime() -> Any:
    """Import onnxruntime without its telemetry, because newer versions would send events to its maker."""
    before = os.environ.get(_NO_TELEMETRY)
    os.environ[_NO_TELEMETRY] = "1"
    try:
        import onnxruntime
    except ImportError as exc:
        raise EmbeddingError(f"onnxruntime cannot be imported: {INSTALL_HINT}") from exc
    finally:
        if before is None:
            del os.environ[_NO_TELEMETRY]
        else:
            os.environ[_NO_TELEMETRY] = before
    onnxruntime.disable_telemetry_events()
    return onnxruntime


def _find_package() -> Path:
    """Return the folder of the installed MiniLM model package, without running the package's code."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise EmbeddingError(f"the model is not installed: {INSTALL_HINT}")
    return Path(next(iter(found.submodule_search_locations)))


def _read_verified(path: Path, size: int, sha256: str) -> bytes:
    """Read one of the model's files. Raises `EmbeddingError` if it is missing, damaged, or of another version."""
    try:
        found = path.stat().st_size
        content = path.read_bytes() if found == size else b""
    except OSError as exc:
        raise EmbeddingError(f"{path.name} of the model cannot be read: {exc.strerror}. {INSTALL_HINT}") from exc
    if found != size:
        raise EmbeddingError(f"{path.name} of the model has {found} bytes, not {size}: {INSTALL_HINT}")
    if hashlib.sha256(content).hexdigest() != sha256:
        raise EmbeddingError(f"{path.name} of the model is damaged: its SHA-256 differs. {INSTALL_HINT}")
    return content
