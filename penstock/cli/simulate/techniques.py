"""Flags of what simulated replicas do beside plain serving: speculation, prefill apart from decode, scaling with the load."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from penstock.config import EngineConfig
from penstock.errors import ConfigError
from penstock.fields import setting
from penstock.runtime.sizing import Sizing
from penstock.service.cluster.scaling import Scaling
from penstock.tools.cost.cost import Cost
from penstock.tools.cost.hardware import Link
from penstock.tools.sim.handover import Disaggregation
from penstock.tools.sim.padding import PaddedCost
from penstock.tools.sim.replica.speculation import Guessing
from penstock.tools.sim.simulation import Result


@dataclass(frozen=True, slots=True)
class Techniques:
    """What they do beside plain serving."""

    speculate: str = "off"
    """Drafts that each sequence verifies in a step: a number, auto (as many as pay, by the engine's own rule) or off"""
    acceptance: float = setting(0.7)
    """Chance that a draft is accepted, given that all before it were"""
    draft_cost: float = setting(0.05)
    """Time of one draft step as a share of the model's own"""
    speculate_up_to: int | None = setting(None)
    """Sequences in a step above which nobody drafts"""
    prefill_replicas: int = 0
    """Further replicas that compute prompts for the others"""
    local_below: int | None = setting(None)
    """Prompts of fewer tokens are computed where they are answered (default: those whose clients wait less then, by the
    router's rule)"""
    transfer_gb_s: float | None = setting(None)
    """Gigabytes a second of the link over which a prefill replica sends keys and values, all its devices together (default:
    the network of each of them)"""
    allocation: Literal["paged", "contiguous"] = setting("paged")
    """How the KV cache is held: in blocks, or a whole --max-context reserved for each sequence, as engines did before paging"""
    padding: bool = setting(False)
    """Compute batches as rectangles, as long as their longest member, as engines did before they packed tokens"""
    scale_to: int | None = None
    """Most replicas there may be: then their number follows the load, from --replicas on"""
    scale_by: Literal["pending", "utilisation"] = setting("pending")
    """What decides how many there should be"""
    scale_target: float | None = setting(None)
    """Pending requests a replica (default 16), or share of its time computing (default 0.7)"""
    scale_kv: float | None = setting(None)
    """Share of a replica's KV blocks in use above which another is started, whatever else decides"""
    scale_ttft_s: float | None = setting(None)
    """Another is started when fewer than 95 % of the requests that wait would have a first token within this"""
    cold_start_s: float = setting(60.0)
    """Seconds until a started replica serves"""
    down_delay_s: float = setting(300.0)
    """Seconds for which fewer must suffice before one is stopped"""

    def guessing(self, seed: int) -> Guessing | None:
        if self.speculate in ("off", "0"):
            return None
        if self.speculate != "auto" and not self.speculate.isdecimal():
            raise ConfigError(f"--speculate is {self.speculate}; choose a number of drafts, auto or off")
        num_drafts = None if self.speculate == "auto" else int(self.speculate)
        return Guessing(num_drafts, self.acceptance, self.draft_cost, self.speculate_up_to, seed)

    def reserved(self, engine: EngineConfig, sizing: Sizing) -> EngineConfig:
        """As many sequences as have a whole context of room, where each reserves one; nothing can be shared then."""
        if self.allocation == "paged":
            return engine
        slots = sizing.num_cached_tokens // sizing.max_context
        if not slots:
            raise ConfigError(
                f"not one sequence of {sizing.max_context:,} tokens fits {sizing.num_cached_tokens:,}; lower --max-context"
            )
        scheduler = replace(engine.scheduler, max_sequences=min(slots, engine.scheduler.max_sequences))
        return replace(engine, scheduler=scheduler, cache=replace(engine.cache, prefix_caching=False))

    def padded(self, cost: Cost) -> Cost:
        return PaddedCost(cost) if self.padding else cost

    def rows(self, sizing: Sizing) -> list[tuple[str, str]]:
        if self.allocation == "paged":
            return []
        slots = sizing.num_cached_tokens // sizing.max_context
        return [("allocation", f"contiguous: {slots:,} places of {sizing.max_context:,} tokens, no prefix cache")]

    def kv_waste_fraction(self, sizing: Sizing, result: Result) -> float:
        """Share of the KV positions held that hold no token, over the run: of whole contexts, or of last blocks."""
        running = math.fsum(one.mean_running * one.seconds for one in result.replicas)
        held = math.fsum(one.mean_kv_usage_fraction * one.num_blocks * one.seconds for one in result.replicas)
        held *= sizing.block_size
        if not running or not held:
            return 0.0
        used = held - min(running * (sizing.block_size - 1) / 2, held)
        return max(0.0, 1.0 - used / (held if self.allocation == "paged" else running * sizing.max_context))

    def scaling(self, num_replicas: int) -> Scaling | None:
        if self.scale_to is None:
            return None
        target = self.scale_target if self.scale_target is not None else {"pending": 16.0}.get(self.scale_by, 0.7)
        return Scaling(
            num_replicas,
            self.scale_to,
            target,
            self.scale_by,
            self.cold_start_s,
            self.down_delay_s,
            kv_target=self.scale_kv,
            ttft_s=self.scale_ttft_s,
        )

    def split(self, kv_bytes_per_token: float, network: Link | None, num_devices: int = 1) -> Disaggregation | None:
        """The bytes are of the whole model; `network` is of one device, and each sends its own share at the same time."""
        if not self.prefill_replicas:
            return None
        if self.transfer_gb_s is not None:
            if not 1e-6 <= self.transfer_gb_s <= 1e6:
                raise ConfigError(f"transfer-gb-s is {self.transfer_gb_s}; choose a number above 0")
            network = Link("network", self.transfer_gb_s * 1e9, network.latency_s if network else 15e-6)
        elif network is not None:
            network = Link(network.kind, num_devices * network.bandwidth_bytes_per_s, network.latency_s)
        if network is None:
            raise ConfigError("a profile does not say how fast keys and values travel; say so with transfer-gb-s")
        follows_rule = self.local_below is None
        return Disaggregation(self.prefill_replicas, network, kv_bytes_per_token, self.local_below or 0, follows_rule)
