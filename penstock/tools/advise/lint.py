"""Common mistakes of a deployment's settings: a table of rules over what is known of it. What is not known is not judged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from penstock.errors import PenstockError
from penstock.tools.advise.data import load
from penstock.tools.calculate.table import calculate, inputs_of
from penstock.tools.cost.hardware import Hardware, find

SAFE_FRACTION = 0.90
LARGEST_STEP = 32_768
GENERAL_SEQUENCES = 64
STRICT_SEQUENCES = 16
STRICT_TPOT_S = 0.02
LEAST_ACCEPTANCE = 0.5
FAR = 2.0
"""Times p99 of use above which a cap caps nothing."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is known of a deployment. None is not known."""

    model: str | None = None
    hardware: str | None = None
    weights: str | None = None
    kv: str | None = None
    memory_fraction: float | None = None
    max_batch_tokens: int | None = None
    max_context: int | None = None
    context_p99: float | None = None
    """Prompt and answer together, as used"""
    max_sequences: int | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    tensor: int | None = None
    replicas: int | None = None
    policy: str | None = None
    lengths: Literal["even", "mixed"] | None = None
    draft_tokens: int | None = None
    """Drafts of every sequence in every step, however many run"""
    acceptance: float | None = None
    speculate_up_to: int | None = None
    draft_tokenizer: Literal["same", "other"] | None = None
    prefix_caching: bool | None = None
    shared_prefix: int | None = None
    prompt_begins_with: str | None = None
    """Something that differs between requests: a date, an id, unordered JSON"""
    kv_bound: bool | None = None
    """The cache is what fills up first"""
    scale_by: str | None = None
    scale_to: int | None = None
    scale_from: int | None = None
    readiness: Literal["tcp", "http", "token"] | None = None
    liveness_s: float | None = None
    """How long a probe waits before it kills"""
    load_s: float | None = None
    longest_step_s: float | None = None
    max_tokens: int | None = None
    client_timeout_s: float | None = None
    e2e_p99_s: float | None = None
    retries: int | None = None
    honours_retry_after: bool | None = None
    sized_by: Literal["weights", "total"] | None = None
    kv_formula: Literal["heads", "kv_heads"] | None = None
    flops: Literal["dense", "sparse"] | None = None
    has_client: bool = False
    """Settings of a client were given at all"""


@dataclass(frozen=True, slots=True)
class LintFinding:
    """In the words of `data/lint.json`, but for what was found."""

    id: str
    setting: str
    found: str = ""
    remedy: str = ""


def lint(setup: Setup) -> list[LintFinding]:
    """Everything that is wrong, in the order of the table."""
    found = ((rule, FINDINGS[rule.id](setup)) for rule in RULES)
    return [replace(rule, found=words) for rule, words in found if words]


def setup_of(values: Mapping[str, Any]) -> Setup:
    """From settings by name, whatever else there is among them."""
    known = {one.name for one in fields(Setup)}
    client = {"max_tokens", "client_timeout_s", "retries", "honours_retry_after"}
    taken = {name: value for name, value in values.items() if name in known and value is not None}
    return Setup(**taken | {"has_client": bool(client & values.keys())})


def _when(condition: object, words: str) -> str | None:
    return words if condition else None


def _memory_fraction(at: Setup) -> str | None:
    share = at.memory_fraction
    return None if share is None else _when(share > SAFE_FRACTION, f"{share:g} of the memory leaves no room for spikes")


def _batch_tokens(at: Setup) -> str | None:
    count = at.max_batch_tokens
    if count is None:
        return None
    if count >= LARGEST_STEP:
        return f"a step of {count:,} tokens stalls every stream while it runs"
    step_s = _answer("throughput", at, prompt=count).get("prefill_s")
    if step_s is None or at.tpot_s is None or at.tensor not in (None, 1):
        return None
    words = f"a step of {count:,} tokens takes {1e3 * step_s:,.0f} ms, the TPOT target is {1e3 * at.tpot_s:,.0f} ms"
    return _when(step_s > at.tpot_s, words)


def _context(at: Setup) -> str | None:
    if at.context_p99 is None:
        return _when(
            at.max_context is None and at.model is not None, "unset: one request may ask for all the model takes"
        )
    if at.max_context is None:
        return f"unset, while 99 of 100 requests need {at.context_p99:,.0f} tokens"
    words = f"{at.max_context:,} tokens, while 99 of 100 requests need {at.context_p99:,.0f}"
    return _when(at.max_context > FAR * at.context_p99, words)


def _sequences(at: Setup) -> str | None:
    if at.max_sequences is None or at.tpot_s is None:
        return None
    most = STRICT_SEQUENCES if at.tpot_s <= STRICT_TPOT_S else GENERAL_SEQUENCES
    step_s = _answer("throughput", at, batch=at.max_sequences, context=round(at.context_p99 or 0)).get("step_s")
    if step_s is not None and at.tensor in (None, 1):
        words = f"{at.max_sequences} at once take {1e3 * step_s:,.0f} ms a step, above the target of {1e3 * at.tpot_s:,.0f} ms"
        return _when(step_s > at.tpot_s, words)
    words = f"{at.max_sequences} at once with a TPOT target of {1e3 * at.tpot_s:,.0f} ms: by memory, not by the target"
    return _when(at.max_sequences > most, words)


def _tensor(at: Setup) -> str | None:
    if at.tensor is None or at.tensor == 1:
        return None
    device = _device(at)
    if device is None:
        return None
    if at.tensor > device.devices_per_machine:
        return f"{at.tensor} devices, {device.devices_per_machine} in a machine: sums of every layer cross the network"
    if device.interconnect == "pcie" and at.tensor > 2:
        return f"{at.tensor} devices over PCI Express: sums of every layer take longer than they save"
    needed = _answer("memory", at, batch=max(1, at.max_sequences or 1)).get("devices_by_layout")
    words = f"{at.tensor} devices where {needed} hold model and cache: replicas would carry more"
    return _when(isinstance(needed, int) and at.tensor >= 4 * needed, words)


def _kv(at: Setup) -> str | None:
    device = _device(at)
    if at.kv == "fp8" and device is not None:
        return _when(not device.peak.flops.fp8, f"fp8 on {at.hardware}, which does not compute in it")
    return _when(at.kv_bound and at.kv in (None, "auto", "bf16", "fp16"), "16 bits while the cache is what fills up")


def _device(at: Setup) -> Hardware | None:
    """The device, where the setup names one of the table; a plan's may be several, or this machine."""
    try:
        return find(at.hardware) if at.hardware else None
    except PenstockError:
        return None


def _answer(name: str, at: Setup, **more: Any) -> dict[str, Any]:
    """A calculator's figures, or none where it lacks something."""
    values: dict[str, Any] = {"model": at.model, "hardware": at.hardware, "weights": at.weights} | more
    if at.context_p99 is not None and name == "memory":
        values["context"] = round(at.context_p99)
    try:
        given = {key: value for key, value in values.items() if value not in (None, "auto", "packed", "")}
        figures: dict[str, Any] = calculate(name, inputs_of(name, given))["values"]
    except PenstockError:
        return {}
    return figures


def _below(limit: float | None, floor: float | None, words: str) -> str | None:
    return None if limit is None or floor is None else _when(limit < floor, words.format(limit, floor))


FINDINGS: Mapping[str, Callable[[Setup], str | None]] = {
    "memory-fraction": _memory_fraction,
    "batch-tokens": _batch_tokens,
    "context": _context,
    "sequences": _sequences,
    "tensor": _tensor,
    "speculation-switch": lambda at: _when(
        at.draft_tokens and at.speculate_up_to is None,
        f"{at.draft_tokens} drafts in every step, without an off switch: a full batch has no idle compute",
    ),
    "speculation-tokenizer": lambda at: _when(
        at.draft_tokenizer == "other", "the draft model has another tokenizer: its guesses mean nothing"
    ),
    "speculation-acceptance": lambda at: _when(
        at.acceptance is not None and at.acceptance < LEAST_ACCEPTANCE,
        f"only {at.acceptance or 0:.0%} of drafts are accepted",
    ),
    "prefix-off": lambda at: _when(
        at.prefix_caching is False and at.shared_prefix, f"off, while {at.shared_prefix} tokens are shared"
    ),
    "prefix-order": lambda at: _when(
        at.prompt_begins_with, f"prompts begin with {at.prompt_begins_with}, which differs each time"
    ),
    "kv": _kv,
    "policy": lambda at: _when(
        at.policy == "round-robin" and (at.replicas or 1) > 1 and at.lengths == "mixed",
        "round robin with requests of mixed lengths: some replicas drown while others idle",
    ),
    "scale-signal": lambda at: _when(
        at.scale_to and at.scale_by == "utilisation", "utilisation alone is high long before it is too high"
    ),
    "scale-zero": lambda at: _when(
        at.scale_from == 0 and at.ttft_s is not None and at.ttft_s < 30.0,
        "to zero with a tight TTFT: someone waits for a cold start",
    ),
    "readiness": lambda at: _when(at.readiness == "tcp", "a TCP port is open long before the model answers"),
    "liveness-load": lambda at: _below(
        at.liveness_s, at.load_s, "liveness gives up after {:g} s, loading takes {:g} s"
    ),
    "liveness-step": lambda at: _below(
        at.liveness_s, at.longest_step_s, "liveness gives up after {:g} s, a step may take {:g} s"
    ),
    "client-tokens": lambda at: _when(
        at.has_client and at.max_tokens is None, "no max_tokens: an answer may run to the end of the context"
    ),
    "client-timeout": lambda at: _below(
        at.client_timeout_s, at.e2e_p99_s, "clients give up after {:g} s, E2E p99 is {:g} s"
    ),
    "client-retries": lambda at: _when(
        at.retries and at.honours_retry_after is False, "retries at once make an overload worse"
    ),
    "sizing-weights": lambda at: _when(at.sized_by == "weights", "sized by weights alone: KV is not counted"),
    "sizing-heads": lambda at: _when(at.kv_formula == "heads", "KV counted for all heads of a model that shares them"),
    "sizing-sparse": lambda at: _when(at.flops == "sparse", "FLOP/s with sparsity: twice what dense work gets"),
}
"""By rule: what is wrong, in words, or None."""

RULES = tuple(LintFinding(**rule) for rule in load("lint"))
