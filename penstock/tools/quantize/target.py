"""The model to be written, beside its tensors: names, config or metadata, tokenizer, template, card; in a folder of its own.

The folder has another name until all of it is there. A folder that was left behind is gone on with if it is of the same job.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError
from penstock.runtime.files import ModelFiles
from penstock.runtime.formats.gguf import GgufFile
from penstock.runtime.formats.tensor_file import PlannedTensor, TensorFile, new_gguf, new_safetensors
from penstock.runtime.models.describe import config_of, metadata_of, published_recipes
from penstock.runtime.models.spec import ModelSpec
from penstock.runtime.models.weights import Recipes
from penstock.runtime.text.tokenizer.export import gguf_metadata, hugging_face_files

PARTIAL = ".partial"
WEIGHTS = "model.safetensors"
COPIED = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("merges.txt", "tokenizer.model", "chat_template.jinja", "chat_template.json", "generation_config.json"),
)
QUANTIZATION_VERSION = 2
"""GGUF's own, of its block formats."""


@dataclass(frozen=True, slots=True)
class MadeModel:
    files: ModelFiles
    out: Path
    gguf: bool
    file_name: str

    @property
    def spec(self) -> ModelSpec:
        return self.files.spec

    @property
    def partial(self) -> Path:
        return self.out.with_name(self.out.name + PARTIAL)

    @property
    def model_path(self) -> Path:
        """What a loader is given once all is there."""
        return self.out / self.file_name if self.gguf else self.out

    @property
    def recipes(self) -> Recipes:
        return published_recipes(self.spec, gguf=self.gguf)

    def check(self) -> None:
        """What cannot be written is known before anything is computed."""
        if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
            raise ConfigError(f"--out {self.out} is there already; name a folder that is not, or remove it")
        _ = self.settings() if self.gguf else self.config()

    def config(self) -> dict[str, Any]:
        """config.json without a word of quantization."""
        if self.files.is_gguf:
            config = config_of(self.spec)
        else:
            config = json.loads((self.files.path / "config.json").read_text())
            config.pop("quantization_config", None)
        for name in ("torch_dtype", "dtype"):
            config.pop(name, None)
        return {**config, "dtype": "bfloat16"}

    def settings(self) -> tuple[dict[str, object], dict[str, list[float]]]:
        """Metadata of a GGUF file, and its tensors that are settings."""
        checkpoint = self.files.checkpoint
        if isinstance(checkpoint, GgufFile):
            return dict(checkpoint.metadata), {}
        metadata, factors = metadata_of(self.spec)
        template = self.files.chat_template
        words = gguf_metadata(self.files.tokenizer, self.spec.vocab_size, None if template is None else template.source)
        return metadata | {"general.name": self.files.name} | words, factors

    def open(self, tensors: Sequence[PlannedTensor], file_type: int) -> TensorFile:
        self.partial.mkdir(parents=True, exist_ok=True)
        if not self.gguf:
            return new_safetensors(self.partial / WEIGHTS, tensors)
        metadata, _ = self.settings()
        metadata.pop("general.alignment", None)
        metadata |= {"general.file_type": file_type, "general.quantization_version": QUANTIZATION_VERSION}
        return new_gguf(self.partial / self.file_name, metadata, tensors)

    def finish(self, quantization: Mapping[str, Any] | None, report: Mapping[str, Any], card: str) -> None:
        """Side files, then the folder's last name."""
        if not self.gguf:
            config = self.config()
            if quantization is not None:
                config["quantization_config"] = dict(quantization)
            for name, text in self._words().items():
                (self.partial / name).write_text(text, encoding="utf-8")
            (self.partial / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        (self.partial / "quantization.json").write_text(json.dumps(report, indent=1) + "\n")
        (self.partial / "README.md").write_text(card, encoding="utf-8")
        self.out.parent.mkdir(parents=True, exist_ok=True)
        if self.out.is_dir():
            self.out.rmdir()
        self.partial.rename(self.out)

    def _words(self) -> dict[str, str]:
        if self.files.is_gguf:
            template = self.files.chat_template
            return hugging_face_files(self.files.tokenizer, None if template is None else template.source)
        for name in COPIED:
            if (self.files.path / name).is_file():
                shutil.copyfile(self.files.path / name, self.partial / name)
        return {}
