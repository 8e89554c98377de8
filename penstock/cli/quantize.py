"""`penstock quantize`: a model made smaller, in a format that others read too."""

import resource
import shlex
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from penstock.console.files import read_text
from penstock.console.progress import ProgressBar
from penstock.console.show import print_json, print_table
from penstock.errors import ConfigError
from penstock.fields import Checked, setting

if TYPE_CHECKING:
    from penstock.runtime.files import ModelFiles
    from penstock.tools.quantize.walk import TokenRows

FORMATS = Literal[
    "int4", "awq", "gptq", "int8", "w8a8", "fp8", "fp8-block", "mxfp4", "mxfp8", "bf16",
    "gguf-bf16", "q8_0", "q4_0", "q4_1", "q4_k_m", "q5_k_m", "q6_k",
]  # fmt: skip
SEQUENCE = 512
MIX_SEQUENCES, MIX_TOKENS = 2, 256
"""Of the calibration text, for measuring what each format does to each matrix."""


@dataclass(frozen=True, slots=True)
class Config(Checked):
    """Make a model smaller, in a format that others read too.

    Layer by layer, in little memory: a model larger than memory works. A run that was stopped goes on where it was. Judge what
    came out with penstock eval.
    """

    model: str = field(metadata={"positional": True})
    """Model to make smaller: a name, a directory or a .gguf file"""
    to: FORMATS = "int4"
    """Format to write; those that begin with q, and gguf-bf16, are GGUF, the others safetensors"""
    out: Path | None = None
    """Folder to write; it must not be there yet"""
    method: Literal["auto", "round", "gptq", "awq", "smooth"] = "auto"
    """How numbers are rounded (auto: the best that the format has)"""
    data: Path | None = None
    """Calibration text (default: a public one, fetched where a method needs it); GGUF formats weigh errors by one"""
    data_tokens: int = setting(16384, SEQUENCE)
    """Calibrate on this many tokens, from all over the text"""
    group: int | None = setting(None)
    """Inputs that share a scale: 32, 64 or 128 (default: the largest that fits)"""
    damping: float = setting(0.01, above=0, most=1)
    """GPTQ's damping, as a share of the mean diagonal"""
    bits_per_weight: float | None = None
    """Mix formats (with --to int4 or q4_0): so many bits for each weight of the layers, where they help most"""
    kv_scales: bool = False
    """Write scales for an 8-bit KV cache too"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to compute on"""
    json: bool = False
    """Print JSON for machines"""


def run(config: Config) -> int:
    if config.out is None:
        raise ConfigError("--out names no folder; say where the model is to be written")
    from penstock.runtime.execution.device import open_device
    from penstock.runtime.files import open_files
    from penstock.tools.quantize.card import card, describe
    from penstock.tools.quantize.job import Making
    from penstock.tools.quantize.schemes import SCHEMES, quantization_config
    from penstock.tools.quantize.target import MadeModel
    from penstock.tools.quantize.walk import Original

    start_s = time.monotonic()
    with ProgressBar() as fetched:
        files = open_files(config.model, None, fetched)
    scheme = SCHEMES[config.to].in_groups(files.spec, config.group)
    method = scheme.methods[0] if config.method == "auto" else config.method
    if method not in scheme.methods:
        raise ConfigError(f"--method {method} is not for {config.to}; choose {' or '.join(scheme.methods)}")
    name = f"{files.name}-{config.to}.gguf"
    target = MadeModel(files, config.out, scheme.gguf, name)
    device = open_device(config.device).torch_device
    original = Original(files.spec, files.model.recipes, files.checkpoint, device)
    tokens = _calibration(config, files) if _needs_text(config, method) else None
    job = Making(original, target, scheme, method, tokens, config.damping, config.kv_scales)
    with ProgressBar("layers") as bar:
        if config.bits_per_weight is not None:
            job.mix(config.bits_per_weight, _calibration(config, files)[:MIX_SEQUENCES, :MIX_TOKENS], bar)
        job.run(bar)
    weights = target.partial / (name if scheme.gguf else "model.safetensors")
    original_bytes = sum(files.checkpoint.tensor(each).num_bytes for each in files.checkpoint.names)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    report = describe(job, weights.stat().st_size, original_bytes, time.monotonic() - start_s, peak)
    ignored = [] if files.spec.tied_embedding else ["lm_head"]
    command = shlex.join(["penstock", *sys.argv[1:]])
    target.finish(quantization_config(job.scheme, method, ignored or ["lm_head"]), report, card(report, command))
    _show(config, report, target.model_path)
    return 0


def _needs_text(config: Config, method: str) -> bool:
    """GGUF formats weigh errors by what reaches a column where a text is given, and need none."""
    weighs = config.data is not None and config.to.startswith("q")
    return method != "round" or config.kv_scales or weighs


def _calibration(config: Config, files: "ModelFiles") -> "TokenRows":
    """Sequences of tokens, from all over the text."""
    from penstock.runtime.formats.texts import fetch_text
    from penstock.tools.quantize.walk import cut

    path = config.data
    if path is None:
        with ProgressBar() as fetched:
            path = fetch_text("wiki", fetched)
    ids = files.tokenizer.encode(read_text(path), special=False)
    return cut(ids, SEQUENCE, config.data_tokens // SEQUENCE)


def _show(config: Config, report: dict[str, object], path: Path) -> None:
    if config.json:
        print_json({**report, "path": str(path)})
        return
    shown = {name: value for name, value in report.items() if name not in ("layers", "says") and value is not None}
    rows = [
        (name.replace("_", " "), f"{value:,}" if isinstance(value, int | float) else str(value))
        for name, value in shown.items()
    ]
    print_table(("", ""), rows)
    print(f"serve it with penstock serve {path}")
