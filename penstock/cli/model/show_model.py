"""`penstock show`: what a model is made of and what it takes."""

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.amounts import format_bytes, format_count
from penstock.cli.plan.model import spec_of_config
from penstock.config import bound_of
from penstock.console.progress import ProgressBar
from penstock.console.show import print_json, print_table, printable
from penstock.runtime.models import catalog
from penstock.runtime.models.kinds.bounded import Bounded
from penstock.runtime.models.kinds.forgetting import bounded
from penstock.runtime.models.spec import GQA, MLA, NO_MLP, Attention, GatedMLP, ModelSpec, MoE, PlainMLP, Rope
from penstock.runtime.models.weights import sources

if TYPE_CHECKING:
    from penstock.runtime.files import ModelFiles

BYTES_IN_MEMORY = {"float32": 4, "bfloat16": 2}
PARTS = ("embedding", "attention", "mlp", "norms", "output")


@dataclass(frozen=True, slots=True)
class Config:
    """Show what a model is made of and what it takes.

    Known models (llama-3.1-8b, qwen3-30b-a3b, ...) are described without a download; others are fetched if they are not here.
    A PEFT directory is described as the adapter it is.
    """

    model: str = field(default="default", metadata={"positional": True})
    """A known model, a path (a lone config.json will do), hf:ORG/NAME, pypi:PACKAGE, or `default` (SmolLM2-135M-Instruct)"""
    long_context: str = "full"
    """As serve's: describe the model with layers that forget, streaming[:FIRST+RECENT] or h2o[:HEAVIEST+RECENT]"""
    json: bool = False
    """Print JSON for machines"""


def run(config: Config) -> int:
    from penstock.cli.model.show_adapter import is_adapter, show_adapter  # numpy

    if is_adapter(Path(config.model)):
        return show_adapter(Path(config.model), is_json=config.json)
    described = describe(config.model, config.long_context)
    if config.json:
        print_json(described)
    else:
        _print(described)
    return 0


def describe(model: str, long_context: str = "full") -> dict[str, Any]:
    """A published model or a lone config, as far as its shape tells; any other with what its files hold beside it."""
    if model.lower() in catalog.CONFIGS or model.startswith(catalog.DUMMY):
        return {
            "model": model.lower().removeprefix(catalog.DUMMY),
            **describe_spec(_served(catalog.find(model), long_context)),
        }
    if model.endswith(".json") and Path(model).is_file():
        return {"model": model, **describe_spec(_served(spec_of_config(Path(model)), long_context))}
    from penstock.runtime.files import open_files

    with ProgressBar() as progress:
        files = open_files(model, progress=progress)
    return {
        "model": files.name,
        "path": str(files.path),
        **describe_spec(_served(files.spec, long_context)),
        "disk": disk_bytes(files),
        "disk_formats": _disk_formats(files),
        "tokenizer_size": files.tokenizer.vocab_size,
        "chat_template": files.chat_template is not None,
    }


def _served(spec: ModelSpec, long_context: str) -> ModelSpec:
    bound = bound_of(long_context)
    return spec if bound is None else bounded(spec, *bound)


def describe_spec(spec: ModelSpec) -> dict[str, Any]:
    parts = spec.parameters_by_part
    return {
        "architecture": spec.architecture,
        "hidden_size": spec.hidden_size,
        "vocabulary": spec.vocab_size,
        "context": spec.max_context,
        "layers": [
            {"count": count, "attention": attention_in_words(layer.attention), "mlp": mlp_in_words(layer.mlp)}
            for layer, count in Counter(spec.layers).items()
        ],
        "makes": "text" if spec.generates else f"vectors ({spec.pooling} of the tokens' states)",
        "parameters": {**parts, "total": spec.num_parameters, "active": spec.num_active_parameters},
        "memory": {
            name: {part: count * size for part, count in parts.items()} | {"total": spec.num_parameters * size}
            for name, size in BYTES_IN_MEMORY.items()
        },
        "kv_bytes_per_token": {
            name: spec.kv_bytes_per_token(size) if spec.generates else 0 for name, size in BYTES_IN_MEMORY.items()
        },
    }


def attention_in_words(attention: Attention) -> str:
    match attention:
        case MLA():
            return latent_in_words(attention)
        case GQA():
            return grouped_in_words(attention)
        case Bounded():
            kept = f"the {attention.num_kept:,} {'first' if attention.keeps == 'first' else 'most attended'}"
            size = f"a state of {attention.state_values:,} numbers"
            plain = grouped_in_words(attention.attention)
            return f"lossy: keeps {kept} and {attention.num_recent:,} recent; {size}; {plain}"
        case _:
            return f"{type(attention).__name__}: a state of {attention.state_values:,} numbers, whatever the context"


def latent_in_words(attention: MLA) -> str:
    queries = f"queries through {attention.q_rank:,}; " if attention.q_rank else ""
    return (
        f"{attention.num_heads} heads of {attention.plain_dim}+{attention.rope.dim}, values of {attention.value_dim}; all in "
        f"a latent of {attention.kv_rank:,} and a rotated key of {attention.rope.dim}; {queries}{rope_in_words(attention.rope)}"
    )


def grouped_in_words(attention: GQA) -> str:
    words = f"{attention.num_heads} heads of {attention.head_dim}"
    if attention.num_kv_heads == attention.num_heads:
        words += ", each with keys and values of its own"
    else:
        words += f", {attention.num_kv_heads} of keys and values"
    notes = [
        "" if attention.causal else "sees both ways",
        f"sees {attention.window:,} tokens back" if attention.window else "",
        rope_in_words(attention.rope),
        f"q and k normed over {'each head' if attention.qk_norm == 'head' else 'all heads'}"
        if attention.qk_norm
        else "",
        "biases" if attention.qkv_bias or attention.out_bias else "",
        f"scores capped at {attention.logit_softcap:g}" if attention.logit_softcap else "",
        "sinks" if attention.sinks else "",
        "gated" if attention.gated else "",
    ]
    return "; ".join([words, *filter(None, notes)])


def rope_in_words(rope: Rope | None) -> str:
    if rope is None:
        return ""
    words = f"RoPE over {rope.dim}, base {rope.theta:,.0f}"
    if rope.scaling is None:
        return words
    kind = type(rope.scaling).__name__.removesuffix("Scaling")
    factor = asdict(rope.scaling).get("factor")
    return f"{words}, scaled ({kind}{f' x{factor:g}' if factor else ''})"


def mlp_in_words(mlp: GatedMLP | PlainMLP | MoE) -> str:
    if isinstance(mlp, MoE):
        shared = f"; for every token {mlp_in_words(mlp.shared)}" if mlp.shared else ""
        return f"{mlp.num_active} of {mlp.num_experts} experts, each {mlp_in_words(mlp.expert)}{shared}"
    if mlp == NO_MLP:
        return "none"
    kind = "gated" if isinstance(mlp, GatedMLP) else "plain"
    return f"{kind} {mlp.activation} of width {mlp.width:,}" + (", biases" if mlp.bias else "")


def disk_bytes(files: "ModelFiles") -> dict[str, int]:
    """What each part takes in the file, and the tensors together."""
    taken = dict.fromkeys(PARTS, 0)
    for name, recipe in files.model.recipes.items():
        tensors = {files.checkpoint.tensor(source).name: files.checkpoint.tensor(source) for source in sources(recipe)}
        taken[part_of(name)] += sum(tensor.num_bytes for tensor in tensors.values())
    return taken | {"total": sum(taken.values())}


def part_of(parameter: str) -> str:
    """Which of the parts that a spec counts a parameter belongs to."""
    parts = parameter.split(".")
    owner = parts[2] if parts[0] == "layers" else parts[0]
    if owner.endswith("norm"):
        return "norms"
    return owner if owner in PARTS else "embedding"


def _disk_formats(files: "ModelFiles") -> dict[str, int]:
    """Bytes by number format, most first."""
    formats: Counter[str] = Counter()
    for name in files.checkpoint.names:
        tensor = files.checkpoint.tensor(name)
        formats[tensor.dtype] += tensor.num_bytes
    return dict(formats.most_common())


def _print(described: dict[str, Any]) -> None:
    disk, memory, counts = described.get("disk", {}), described["memory"], described["parameters"]
    facts = {
        "model": described["model"],
        "path": described.get("path"),
        "architecture": f"{described['architecture']}, hidden size {described['hidden_size']:,}",
        "makes": described["makes"],
        "parameters": f"{counts['total']:,} ({format_count(counts['total'])})"
        + (f", {format_count(counts['active'])} used for a token" if counts["active"] < counts["total"] else ""),
        "context": f"{described['context']:,} tokens",
        "vocabulary": f"{described['vocabulary']:,} tokens"
        + (f", {described['tokenizer_size']:,} in the tokenizer" if "tokenizer_size" in described else ""),
        "chat template": {True: "yes", False: "no"}.get(described.get("chat_template", "")),
        "formats on disk": ", ".join(described.get("disk_formats", ())),
        "KV cache a token": ", ".join(
            f"{format_bytes(size)} ({name})" for name, size in described["kv_bytes_per_token"].items() if size
        ),
    }
    for name, value in facts.items():
        if value:
            print(f"{name:<18}{printable(str(value))}")
    for layer in described["layers"]:
        print(f"{layer['count']:>3} layers".ljust(18) + f"attention: {layer['attention']}\n{'':<18}mlp: {layer['mlp']}")
    print()
    columns = ["part", "parameters", *(["on disk"] if disk else []), *(f"as {name}" for name in memory)]
    rows = [
        [
            part,
            counts[part],
            *([format_bytes(disk[part])] if disk else []),
            *(format_bytes(m[part]) for m in memory.values()),
        ]
        for part in (*PARTS, "total")
        if counts[part]
    ]
    print_table(columns, rows)
