"""`penstock eval report`: what making a model smaller changed, measured here, as a page and as values."""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from penstock.console.files import check_writable, write_file
from penstock.console.show import print_json, print_table
from penstock.errors import ConfigError
from penstock.fields import setting
from penstock.tools.evaluate.kept import keep
from penstock.tools.evaluate.summary import summarize

if TYPE_CHECKING:
    from penstock.runtime.files import ModelFiles

CARD = "quantization.json"
REPORT = "report.json"


@dataclass(frozen=True, slots=True)
class Config:
    """Report what making a model smaller changed: size, memory, speed here, perplexity, KL divergence, tasks, errors by layer.

    Each measure runs in a process of its own. The report is kept beside the made model and where penstock plan looks for it.
    """

    made: str = field(metadata={"positional": True})
    """Model that was made smaller: a folder of penstock quantize, or any model"""
    before: str = field(metadata={"positional": True})
    """Model it was made of"""
    text: Path | None = None
    """Text to measure perplexity and KL divergence on"""
    tokens: int = 4096
    """Measure on this many tokens of it"""
    tasks: str | None = None
    """Questions: a suite that is fetched (mmlu, humaneval), or JSON lines"""
    questions: int | None = setting(None)
    """Ask this many of them"""
    speed: bool = True
    """Measure W1 to W3 and peak memory; the machine should be idle"""
    activations: Literal["served", "int8", "q8"] = "served"
    """Round activations as W8A8 engines do (int8) or as llama.cpp does (q8), instead of as they are served here"""
    html: Path | None = None
    """File to write the page to"""
    json: bool = False
    """Print JSON for machines"""


def run(config: Config) -> int:
    from penstock.runtime.files import open_files
    from penstock.runtime.formats.hub import default_cache
    from penstock.tools.evaluate.page import page_of, rows_of

    check_writable(config.html)
    whole, small = open_files(config.before), open_files(config.made)
    if whole.spec.vocab_size != small.spec.vocab_size:
        raise ConfigError(f"{config.made} has another vocabulary than {config.before}; name the model it was made of")
    folder = small.path if small.path.is_dir() else small.path.parent
    made = _card(folder)
    before = _measured(config, config.before, whole, None)
    report = summarize(made, before, _measured(config, config.made, small, config.before))
    if (folder / CARD).exists():
        (folder / REPORT).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if report["format"]:
        spec = whole.spec
        keep(report, (spec.num_parameters, spec.num_layers, spec.hidden_size, spec.vocab_size), default_cache())
    if config.html is not None:
        write_file(config.html, page_of(report))
    if config.json:
        print_json(report)
        return 0
    print_table(("", "before", "after", "after / before"), rows_of(report))
    print(report["recommendation"])
    return 0


def _card(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / CARD).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


def _measured(config: Config, model: str, files: "ModelFiles", reference: str | None) -> dict[str, Any]:
    checkpoint = files.checkpoint
    size = sum(checkpoint.tensor(name).num_bytes for name in checkpoint.names)
    found: dict[str, Any] = {
        "model": files.name,
        "bytes": size,
        "bits_per_weight": 8 * size / files.spec.num_parameters,
    }
    rounding = ["--activations", config.activations] if config.activations != "served" and reference else []
    if config.text is not None:
        words = ["eval", "perplexity", str(config.text), model, "--tokens", str(config.tokens), "--json", *rounding]
        found["text"] = _child("perplexity", ["penstock", *words, *(["--reference", reference] if reference else [])])
    if config.tasks is not None:
        count = [] if config.questions is None else ["--tokens", str(config.questions)]
        found["tasks"] = _child(
            "tasks", ["penstock", "eval", "tasks", config.tasks, model, "--json", *count, *rounding]
        )
    if config.speed:
        found["speed"] = _child("speed", ["penstock.cli.evaluate.speed", model])
    return found


def _child(measure: str, words: list[str]) -> dict[str, Any]:
    """One measure in a process of its own: its memory is its own, and what it leaves behind disturbs no other."""
    print(f"measuring {measure}: {' '.join(words[1:])}", file=sys.stderr)
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ConfigError(f"measuring {measure} failed: {said}")
    found = json.loads(done.stdout)
    return found if isinstance(found, dict) else {}
