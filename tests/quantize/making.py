"""Small models to make smaller: random ones of `transformers`, with a tokenizer of bytes beside them."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import tokenizers
import torch
from torch import Tensor

from penstock.runtime.files import ModelFiles
from penstock.runtime.formats.tensor_file import TensorFile
from penstock.tools.quantize.job import Making
from penstock.tools.quantize.observe import SeenInputs
from penstock.tools.quantize.schemes import SCHEMES, Method, Scheme, quantization_config
from penstock.tools.quantize.target import MadeModel
from penstock.tools.quantize.walk import Original
from tests.models.tiny import Variant

CPU = torch.device("cpu")
TEXT_LENGTH = 24


def words() -> tokenizers.Tokenizer:
    """Byte-level, without merges."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model = tokenizers.models.BPE(vocab={token: number for number, token in enumerate(alphabet)}, merges=[])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens([tokenizers.AddedToken("<end>", special=True)])
    return tokenizer


def save(variant: Variant, folder: Path) -> Path:
    variant.save(folder)
    words().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    return folder


@dataclass
class WatchedMaking(Making):
    """Keeps what readers should find, by our names."""

    made: dict[str, Tensor] = field(default_factory=dict)

    def _write(self, file: TensorFile, name: str, values: Tensor, inputs: SeenInputs | None) -> Tensor:
        self.made[name] = super()._write(file, name, values, inputs).clone()
        return self.made[name]


def job(
    source: Path, out: Path, name: str, method: Method | None = None, scheme: Scheme | None = None
) -> WatchedMaking:
    files = ModelFiles(str(source), source)
    scheme = scheme or SCHEMES[name].in_groups(files.spec, None)
    method = method or scheme.methods[0]
    tokens = None
    if method != "round":
        tokens = torch.randint(files.spec.vocab_size, (8, TEXT_LENGTH), generator=torch.Generator().manual_seed(3))
    original = Original(files.spec, files.model.recipes, files.checkpoint, CPU)
    return WatchedMaking(original, MadeModel(files, out, scheme.gguf, "model.gguf"), scheme, method, tokens)


def make(source: Path, out: Path, name: str, method: Method | None = None) -> WatchedMaking:
    made = job(source, out, name, method)
    made.run(lambda stage, done, total: None)
    made.target.finish(quantization_config(made.scheme, made.method, ["lm_head"]), {}, "")
    return made


def read(made: Making) -> dict[str, Tensor]:
    """All parameters of what was made, as a loader reads them."""
    path = made.target.model_path
    files = ModelFiles(str(path), path)
    again = Original(files.spec, files.model.recipes, files.checkpoint, CPU)
    found = {}
    for name, _ in made._parameters():
        if not name.startswith("layers."):
            found[name] = again.parameter(name).detach()
    for number in range(files.spec.num_layers):
        for name, parameter in again.layer(number).layers[0].named_parameters():
            found[f"layers.{number}.{name}"] = parameter.detach()
    return found
