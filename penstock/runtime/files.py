"""A model as it lies on disk: what it is made of, its tensors, its words. Knows no device and computes nothing.

One noun for both halves of a deployment: the engine takes the spec and the tensors, the front takes the tokenizer and the
chat template.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, ModelFileError
from penstock.runtime.formats.checkpoint import Checkpoint
from penstock.runtime.formats.gguf import GgufFile
from penstock.runtime.formats.hub import default_cache, resolve
from penstock.runtime.formats.open import open_checkpoint
from penstock.runtime.formats.quants import dequantize
from penstock.runtime.formats.store import Progress
from penstock.runtime.models import catalog
from penstock.runtime.models.reading.positions import FACTOR_TENSORS
from penstock.runtime.models.registry import RegisteredModel, read_config, read_gguf
from penstock.runtime.models.spec import ModelSpec
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer, read_json

if TYPE_CHECKING:
    from penstock.runtime.text.template.chat import ChatTemplate

FINGERPRINT_BYTES = 1024
"""Of each tensor: its values differ there between any two models."""


@dataclass(frozen=True)
class ModelFiles:
    """`path` is a .gguf file or a directory with config.json."""

    source: str
    path: Path

    @property
    def name(self) -> str:
        """Short name for people."""
        return self.path.stem if self.path.is_file() else self.path.name

    @property
    def is_gguf(self) -> bool:
        return self.path.is_file()

    @cached_property
    def checkpoint(self) -> Checkpoint:
        return open_checkpoint(self.path)

    @cached_property
    def model(self) -> RegisteredModel:
        """The spec, and the recipes that make its parameters of the checkpoint's tensors."""
        checkpoint = self.checkpoint
        if isinstance(checkpoint, GgufFile):
            present = [name for name in FACTOR_TENSORS if name in checkpoint.names]
            factors = {name: dequantize(checkpoint.tensor(name)).tolist() for name in present}
            return read_gguf(checkpoint.metadata, checkpoint.names, factors)
        config = self._json("config.json")
        pooling = read_json(self.path / "1_Pooling" / "config.json") or None
        return read_config(config, checkpoint.names, pooling)

    @property
    def spec(self) -> ModelSpec:
        return self.model.spec

    @cached_property
    def tokenizer(self) -> Tokenizer:
        checkpoint = self.checkpoint
        if isinstance(checkpoint, GgufFile):
            return Tokenizer.from_gguf(checkpoint.metadata)
        return Tokenizer.from_directory(self.path)

    @cached_property
    def chat_template(self) -> "ChatTemplate | None":
        """None for a model that was not made to chat."""
        from penstock.runtime.text.template.chat import (
            ChatTemplate,  # who completes text needs no templates, and does not wait for them
        )

        checkpoint = self.checkpoint
        if isinstance(checkpoint, GgufFile):
            return ChatTemplate.from_gguf(checkpoint.metadata, self.tokenizer)
        return ChatTemplate.from_directory(self.path, self.tokenizer)

    @cached_property
    def fingerprint(self) -> str:
        """Tells models apart: of every tensor its name, format, shape and first bytes."""
        digest = hashlib.sha256()
        for name in sorted(self.checkpoint.names):
            raw = self.checkpoint.tensor(name)
            digest.update(f"{name} {raw.dtype} {raw.shape}\n".encode())
            digest.update(raw.data[:FINGERPRINT_BYTES].tobytes())
        return digest.hexdigest()

    @property
    def weights_digest(self) -> str:
        """Changes with the weights: bytes from all over every tensor besides its beginning."""
        digest = hashlib.sha256(self.fingerprint.encode())
        for name in sorted(self.checkpoint.names):
            data = self.checkpoint.tensor(name).data
            digest.update(data[:: max(len(data) // FINGERPRINT_BYTES, 1)].tobytes())
        return digest.hexdigest()

    def _json(self, name: str) -> Mapping[str, Any]:
        try:
            content = json.loads((self.path / name).read_text())
        except FileNotFoundError:
            raise ModelFileError(f"{self.path} has no {name}; name a model directory or a .gguf file") from None
        except (OSError, ValueError) as error:
            raise ModelFileError(f"{self.path / name} cannot be read: {error}") from error
        if not isinstance(content, dict):
            raise ModelFileError(f"{self.path / name} does not hold a JSON object")
        return content


def open_files(source: str, cache: Path | None = None, progress: Progress | None = None) -> ModelFiles:
    """Find a model, fetching it if need be."""
    return ModelFiles(source, resolve(source, cache or default_cache(), progress))


def dummy_spec(source: str) -> ModelSpec | None:
    """The shape asked for by `dummy:NAME`; None if `source` asks for a real model."""
    return catalog.find(source) if source.startswith(catalog.DUMMY) else None


def no_words(source: str) -> ConfigError:
    return ConfigError(f"{source} has no tokenizer; give it token ids, or name a real model")
