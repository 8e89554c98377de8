"""What the operator asked of a service: who may call, over what, and how replicas are placed and chosen. Frozen, checked when
made; each field's docstring is its help text on the command line.
"""

import re
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

from penstock.errors import ConfigError
from penstock.fields import advanced, check, leaf, setting

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["plain", "json"]
HOUR_S, DAY_S = 3600.0, 86_400.0


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Replicas on the machines of a Ray cluster."""

    address: str = "local"
    """Ray cluster to place replicas on: HOST:PORT, auto for the one this machine belongs to, or local to begin one here"""
    min_replicas: int = 1
    """Fewest replicas; 0 lets the service scale to zero until a request comes"""
    max_replicas: int = 1
    """Most replicas"""
    pending_target: float | None = setting(None, above=0)
    """Pending requests per replica above which another is started (default: 16, with ttft-target-s 64)"""
    kv_target: float | None = setting(None, above=0, most=1)
    """Share of a replica's KV blocks in use above which another is started (default: none is because of them)"""
    ttft_target_s: float | None = setting(None, above=0, most=DAY_S, unit="seconds")
    """Another is started when fewer than 95 % of the requests that wait would have a first token within this (default: none)"""
    down_delay_s: float = setting(300.0, 0, DAY_S, unit="seconds")
    """How long fewer replicas must suffice before one is drained and ended"""
    window_s: float = leaf(15.0, 0, DAY_S, unit="seconds")
    """Time in which replicas at most double, or four come, whatever the load; 0 sets no bound"""
    arrival_curve: Path | None = setting(None)
    """File to keep requests a second by the time of day in: replicas are ready when the load of the days before comes again"""
    look_s: float = setting(1.0, 0.05, DAY_S, unit="seconds")
    """Seconds between checks of load and replicas"""
    replica_cpus: float | None = setting(None)
    """Processors that a replica takes of each of its nodes (default: one a rank)"""
    replica_gpus: float | None = setting(None)
    """GPUs that a replica takes of each of its nodes (default: one a rank with --device cuda, else none)"""

    def __post_init__(self) -> None:
        check(self)
        if not 0 <= self.min_replicas <= self.max_replicas <= 10_000 or not self.max_replicas:
            raise ConfigError(
                f"--min-replicas is {self.min_replicas} and --max-replicas {self.max_replicas}; choose 0 or more, and as "
                "many or more"
            )


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
class ListenerConfig:
    """Where to listen, who may call, and how long a shutdown takes."""

    host: str = "127.0.0.1"
    """Address to listen on; other than this machine's own only with keys"""
    port: int = leaf(8000, 0, 65535)
    """Port to listen on; 0 takes a free one"""
    api_key: tuple[str, ...] = ()
    """Key that clients must send; PENSTOCK_API_KEY holds one too, unseen by others on this machine"""
    jwt: Path | None = advanced(None)
    """File with a table [jwt] of an identity provider, whose signed tokens are taken in place of keys (docs/gateway.md)"""
    allowed_host: tuple[str, ...] = ()
    """Host name that clients may call us by, besides this machine's own"""
    allowed_origin: tuple[str, ...] = setting(())
    """Web page origin that may call us from a browser"""
    max_body_mib: int = setting(8, 1, 1024)
    """Largest request body, in MiB"""
    drain_s: float = leaf(30.0, 0, DAY_S, unit="seconds")
    """How long a shutdown waits for answers in progress"""
    tls: TlsConfig = field(default_factory=TlsConfig)

    def __post_init__(self) -> None:
        check(self)
        if any(len(key) < 8 for key in self.keys):
            raise ConfigError("a key is shorter than 8 characters; choose one nobody can guess")

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
        return self.api_key

    @property
    def is_keyed(self) -> bool:
        """Not every client is admitted."""
        return bool(self.keys) or self.jwt is not None


@dataclass(frozen=True, slots=True)
class ServerConfig(ListenerConfig):
    """Who may call, and how long slow peers are waited for."""

    admin_key: tuple[str, ...] = ()
    """Key that works like an --api-key and sees the requests of all in the web app; PENSTOCK_ADMIN_KEY holds one too"""
    router_key: str | None = None
    """Key of a router, which is believed for whom it asks; PENSTOCK_REPLICA_KEY holds it too, as it does for the router"""
    role: str | None = None
    """What a router uses this server for: prefill (prompts, whose KV blocks others fetch), decode (answers) or both, all three
    with their blocks open to replicas that know PENSTOCK_REPLICA_KEY; or, such as 1P2D, a fleet of so many of each on this
    machine (default: neither offers nor fetches blocks)"""
    bench_target: tuple[str, ...] = setting(())
    """Another server's address that the web app's bench page may load, besides this one"""
    strict: bool = setting(False)
    """Refuse what OpenAI refuses and we would pass over: fields that nothing reads, more than four stops, stream_options
    without stream"""
    hang_s: float = setting(10.0, 1, DAY_S, unit="seconds")
    """How long the engine may be silent before it is replaced; one step may take six times as long"""
    stall_s: float = setting(60.0, 0.1, DAY_S, unit="seconds")
    """How long a client may stop reading before it is cut off"""
    data_dir: Path | None = None
    """Directory for files, batches and responses, kept from run to run; without one they last as long as the server"""
    retention_days: float = setting(30.0, above=0, most=36_500)
    """How long responses can be retrieved; files have their own expiry"""
    record: Path | None = advanced(None)
    """File to append a trace of every request to: times and counts, never text"""
    watermark: Path | None = None
    """File with a secret key: what is sampled carries a watermark that `penstock detect` finds with it"""
    watch_prefixes: Literal["off", "on", "text"] = advanced("off")
    """Hold prompts against the last ones and count what kept them from the prefix cache, for penstock doctor cache; text keeps
    the words that differed too"""
    log_level: LogLevel = "info"
    """How much is logged: debug explains every step, info names starts, stops, refusals and faults"""
    log_format: LogFormat = setting("plain")
    """Lines for people, or a JSON object a line; no text of prompts or answers in either"""
    otlp_endpoint: str | None = advanced(None)
    """Collector to send a span of every request to (OpenTelemetry over HTTP): times and counts, never text"""
    price_per_hour: float | None = setting(None, 0, 1e6, unit="dollars")
    """Dollars an hour of what this server runs on: then metrics have what 1,000 tokens cost"""

    def __post_init__(self) -> None:
        ListenerConfig.__post_init__(self)
        _check_endpoint(self.otlp_endpoint)
        if self.role is not None:
            roles_of(self.role)
        if not all(url.startswith(("http://", "https://")) for url in self.bench_target):
            raise ConfigError("a bench-target is an address that begins with http:// or https://")

    @property
    def keys(self) -> tuple[str, ...]:
        return (*self.api_key, *self.admin_key, *((self.router_key,) if self.router_key else ()))

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
class ListenConfig(ListenerConfig):
    """Where the router listens, and who may call it."""

    port: int = leaf(8080, 0, 65535)
    """Port to listen on; 0 takes a free one"""
    admin_port: int | None = leaf(None, 0, 65535)
    """Port of the admin API on this machine, with the key in PENSTOCK_ADMIN_KEY; 0 takes a free one"""


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """How replicas are chosen, checked and retried."""

    policy: RoutingPolicy = "prefix-predicted"
    """How a replica is chosen"""
    probe_s: float = setting(1.0, 0.05, HOUR_S, unit="seconds")
    """Seconds between health checks of each replica"""
    slow_start_s: float = setting(5.0, 0, HOUR_S, unit="seconds")
    """Seconds over which a fresh replica is ramped up to its full share"""
    wait_s: float = setting(10.0, 0, HOUR_S, unit="seconds")
    """How long a request waits for a replica when none is ready"""
    max_failovers: int = setting(8)
    """How often one answer may move to another replica"""
    handover: Handover = "auto"
    """Whether replicas with a --role compute prompts for each other: auto where clients wait less then, by what was measured;
    retune likewise, and replicas of role both become prefill ones, and both again, as the load asks"""
    hedge_s: float = setting(0.0, 0, HOUR_S, unit="seconds")
    """Seconds without an answer after which another replica is asked too, and the first to begin is taken; 0 never"""
    max_parked: int = setting(1024, 1)
    """Requests that may wait for a replica"""
    seed: int = advanced(0)
    """Of policies that draw lots"""
    route_log: Path | None = setting(None)
    """File to append every choice to: what was known, what was chosen, why; no text"""
    otlp_endpoint: str | None = advanced(None)
    """Collector to send spans of every request to (OpenTelemetry over HTTP): times and counts, never text"""
    replica_ca: Path | None = None
    """File with certificates of those who sign https:// replicas, in place of the system's; they are shown --tls-cert"""

    def __post_init__(self) -> None:
        check(self)
        _check_endpoint(self.otlp_endpoint)


def _check_endpoint(url: str | None) -> None:
    if url is not None and not url.startswith(("http://", "https://")):
        raise ConfigError(f"--otlp-endpoint is {url}; it begins with http:// or https://")


def is_loopback(host: str) -> bool:
    """The address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
