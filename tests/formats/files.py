"""Small model files, byte by byte, so that a test can put any fault anywhere."""

import json
import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np


def rewrite(path: Path, data: bytes) -> None:
    """A new file under the old name. Truncating one that may still be mapped is slow, and would change it for its reader."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


# ---- GGUF

UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
F32, Q4_0, Q8_1 = 0, 2, 9


def gguf_string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def gguf_entry(key: str | bytes, kind: int, payload: bytes) -> bytes:
    return gguf_string(key) + struct.pack("<I", kind) + payload


def gguf_array(key: str, kind: int, count: int, payload: bytes) -> bytes:
    return gguf_entry(key, ARRAY, struct.pack("<IQ", kind, count) + payload)


def gguf_tensor(name: str, dims: Sequence[int], kind: int, offset: int, num_dims: int | None = None) -> bytes:
    count = len(dims) if num_dims is None else num_dims
    return gguf_string(name) + struct.pack(f"<I{len(dims)}QIQ", count, *dims, kind, offset)


def gguf_file(
    entries: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    num_keys: int | None = None,
    num_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    counts = (
        len(tensors) if num_tensors is None else num_tensors,
        len(entries) if num_keys is None else num_keys,
    )
    header = magic + struct.pack("<IQQ", version, *counts) + b"".join(entries) + b"".join(tensors)
    return header + b"\0" * (-len(header) % alignment) + data


def lifelike_gguf() -> bytes:
    """A header with every kind of value a model has, and three tensors."""
    words = [f"word{number}" for number in range(40)]
    entries = [
        gguf_entry("general.architecture", STRING, gguf_string("llama")),
        gguf_entry("general.alignment", UINT32, struct.pack("<I", 32)),
        gguf_entry("llama.block_count", UINT32, struct.pack("<I", 2)),
        gguf_entry("llama.rope.freq_base", FLOAT32, struct.pack("<f", 10000.0)),
        gguf_entry("tokenizer.ggml.add_bos_token", BOOL, b"\1"),
        gguf_array("tokenizer.ggml.tokens", STRING, len(words), b"".join(map(gguf_string, words))),
        gguf_array("tokenizer.ggml.scores", FLOAT32, 40, np.linspace(0, 1, 40, dtype="<f4").tobytes()),
        gguf_array("tokenizer.ggml.token_type", INT32, 40, np.ones(40, dtype="<i4").tobytes()),
        gguf_entry(
            "tokenizer.chat_template", STRING, gguf_string("{% for message in messages %}{{ message }}{% endfor %}")
        ),
    ]
    tensors = [
        gguf_tensor("token_embd.weight", [32, 8], Q4_0, 0),  # 8 rows of 18 bytes
        gguf_tensor("blk.0.attn_norm.weight", [8], F32, 160),
        gguf_tensor("blk.0.attn_q.weight", [4, 2], F32, 192),
    ]
    return gguf_file(entries, tensors, bytes(range(224)))


# ---- safetensors


def safetensors_file(header: object, data: bytes = b"", *, header_bytes: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if header_bytes is None else header_bytes) + text + data


def safetensors_entry(dtype: object, shape: object, start: object, end: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def lifelike_safetensors() -> bytes:
    header = {
        "__metadata__": {"format": "pt"},
        "model.embed_tokens.weight": safetensors_entry("F32", [8, 4], 0, 128),
        "model.layers.0.input_layernorm.weight": safetensors_entry("BF16", [4], 128, 136),
        "model.layers.0.self_attn.q_proj.weight": safetensors_entry("F16", [4, 4], 136, 168),
        "model.layers.0.self_attn.q_proj.scale": safetensors_entry("F8_E4M3", [4], 168, 172),
        "model.empty": safetensors_entry("I64", [0, 3], 172, 172),
    }
    return safetensors_file(header, bytes(range(172)))


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Float32 tensors only."""
    header, data = {}, b""
    for name, tensor in tensors.items():
        values = tensor.astype("<f4").tobytes()
        header[name] = safetensors_entry("F32", list(tensor.shape), len(data), len(data) + len(values))
        data += values
    path.write_bytes(safetensors_file(header, data))


# ---- wheels


def write_wheel(path: Path, members: Mapping[str | zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
    return path


def package_wheel(folder: Path, package: str, version: str, members: Mapping[str, bytes]) -> Path:
    """A wheel that pip accepts."""
    module = package.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    about = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    return write_wheel(folder / f"{module}-{version}-py3-none-any.whl", {**members, **about})
