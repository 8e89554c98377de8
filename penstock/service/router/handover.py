"""Where a prompt is computed: by the replica that answers, or by another whose blocks that one then fetches. Pure.

The rule weighs seconds that clients wait. A prompt computed where answers are generated delays its own first token and every
answer in progress there; computed elsewhere it delays only its own, by that replica's queue and the transfer. Where both
replicas share a device nothing is gained: what one computes the other waits for. The router decides by it for live replicas,
simulator and planner for simulated ones.
"""

from math import inf
from typing import NamedTuple

SHARED_DELAY = 1.0
"""Seconds that answers wait for each second in which another process computes prompts on the same device."""
FETCHED_BYTES_S = 1e9
"""Until it was measured."""
LEAST_GAIN = 0.05
"""Of the seconds of computing where it is answered that moving has to spare."""
MOST_BUSY = 0.9
"""Of the time and the memory of replicas: with more, requests queue."""
RETUNE_GAIN = 0.2
"""Of the seconds that clients wait that another number of prefill replicas has to spare: changing roles costs a drain."""


class PromptSite(NamedTuple):
    """A replica that could compute a prompt, as far as that matters here."""

    num_missing: int
    """Tokens of the prompt that its cache lacks."""
    num_waiting: int = 0
    """Prompt tokens that wait there."""
    token_s: float = 0.0
    """Seconds a prompt token takes there; 0 if nobody knows."""


class Transfer(NamedTuple):
    """The way from one replica's cache to another's."""

    token_s: float
    """Seconds that a token's keys and values take."""
    latency_s: float = 0.002
    is_shared: bool = False
    """Both replicas compute on one device."""
    waiting_s: float = 0.0
    """Until what is on its way already has arrived."""


class RoleLoad(NamedTuple):
    """What replicas that could do either have to do."""

    num_replicas: int
    prompt_s: float
    """Seconds of computing prompts that come in a second."""
    num_answers: float = 0.0
    """Answers in progress."""
    kv_fraction: float = 0.0
    """Of one replica's memory, what all answers together need."""
    transfer_ratio: float = 0.0
    """Seconds that a prompt's blocks travel for each second of computing it."""
    is_shared: bool = False
    """All compute on one device."""


class HandoverVerdict(NamedTuple):
    is_moved: bool
    moved_s: float
    """Seconds that all clients together wait if the prompt is computed elsewhere."""
    why: str


def judge_handover(here: PromptSite, there: PromptSite, transfer: Transfer, num_running: int) -> HandoverVerdict:
    """Whether a prompt is better computed `there` than `here`, where it is answered beside `num_running` other answers."""
    if here.num_missing <= there.num_missing // 16:
        return HandoverVerdict(False, 0.0, "its blocks are here")
    if not here.token_s and not there.token_s:
        return HandoverVerdict(True, 0.0, "nothing is known yet")
    here_s, there_s = here.token_s or there.token_s, there.token_s or here.token_s
    local_s = (here.num_waiting + here.num_missing) * here_s + num_running * here.num_missing * here_s
    computing_s = there.num_missing * there_s
    moving_s = here.num_missing * transfer.token_s
    slowed = 1.0 + SHARED_DELAY * (num_running > 0) if transfer.is_shared else 1.0
    # Blocks travel while the rest is computed, and those of prompts before it too: what is slower of both decides.
    computed_s = there.num_waiting * there_s + computing_s * slowed
    arrived_s = max(transfer.waiting_s, there.num_waiting * transfer.token_s) + moving_s
    moved_s = max(computed_s, arrived_s) + transfer.latency_s
    if transfer.is_shared:
        moved_s += num_running * computing_s * SHARED_DELAY
    if moved_s < (1.0 - LEAST_GAIN) * local_s:
        return HandoverVerdict(True, moved_s, "saves time")
    if transfer.is_shared:
        why = "both share a device"
    elif moving_s > computing_s:
        why = "the transfer takes longer"
    elif not num_running:
        why = "nobody waits here"
    else:
        why = "it waits longer there"
    return HandoverVerdict(False, moved_s, why)


def waiting_cost(load: RoleLoad, num_prefill: int) -> float:
    """Seconds that all clients together wait for prompts in a second, with so many replicas that compute prompts alone;
    infinite where those or the others have too much to do."""
    num_others, work_s = load.num_replicas - num_prefill, load.prompt_s
    delayed = work_s * load.num_answers / max(num_others, 1)
    if not num_prefill:
        busy = min(work_s / load.num_replicas, MOST_BUSY)
        return work_s * (1.0 + busy / (2.0 * (1.0 - busy))) + delayed
    busy = work_s / num_prefill
    if num_others < 1 or busy > MOST_BUSY or load.kv_fraction > MOST_BUSY * num_others:
        return inf
    own_s = work_s * max(1.0, load.transfer_ratio) * (1.0 + busy / (2.0 * (1.0 - busy)))
    return own_s + (delayed * SHARED_DELAY if load.is_shared else 0.0)


def wanted_prefills(load: RoleLoad, num_now: int) -> int:
    """Of replicas that could do either, how many should compute prompts alone; as many as now where little is to gain. One that
    gains nothing does either again."""
    if load.num_replicas < 2:
        return 0
    best = min(range(load.num_replicas), key=lambda count: waiting_cost(load, count))
    gain = 0.0 if best < num_now else RETUNE_GAIN
    return best if waiting_cost(load, best) < (1.0 - gain) * waiting_cost(load, num_now) else num_now
