"""How the tokens of a step are divided between tenants, while several of them have work.

Tokens go to tenants by equal shares: a tenant that wants less than its share gets all it wants, and what it leaves goes to the
others. Sequences that generate pause, in turn, only where they would take more than half of a step; then half of a tenant's
share is for its prompts, if it has any. Knows no steps: `plan` asks who pauses, and how many tokens
of its prompts a tenant may compute.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter

from penstock.runtime.core.queue.roster import Roster
from penstock.runtime.core.sequence import Sequence

LINGER_S = 10.0
"""Steps stay short for so long after several tenants had work: whoever asks now and then finds no long step under way."""
MANY_STEPS = 8
MANY_TENANTS, MIN_PROMPT = 4, 16
"""Where more tenants than these have work, those that come first in order have at least a chunk that is worth it."""


@dataclass(slots=True)
class Shares:
    """Of one step."""

    paused: frozenset[Sequence]
    """Sequences that hold their next token and are left out of this step."""
    _prompts: dict[str, int]
    spare: int
    """Tokens that nobody's share needs: room for drafts."""

    def room(self, tenant: str) -> int:
        """Tokens of prompts that the tenant may still compute."""
        return self._prompts.get(tenant, MIN_PROMPT)

    def take(self, tenant: str, num_tokens: int) -> None:
        self._prompts[tenant] = self.room(tenant) - num_tokens


def sole_tenant(roster: Roster) -> str | None:
    """The tenant whose sequences are all that run, where service is counted."""
    is_sole = roster.order.counts_service and len(roster.tenants) == 1
    return next(iter(roster.tenants)) if is_sole else None


def share_step(roster: Roster, budget: int, most: int | None) -> tuple[int, bool, Shares | None]:
    """The budget of a step, whether it is a short one, and how it is divided; None if one tenant has all of it.

    Steps have no more than `most` tokens while sequences of several tenants run or wait, and a little longer.
    """
    tenants = roster.tenants
    firsts = roster.order.firsts if roster.waiting_since is not None else ()
    is_contended = len(tenants) > 1 or len({*tenants, *[first.request.tenant for first in firsts]}) > 1
    if is_contended:
        roster.shared_until_s = roster.now + LINGER_S
    is_shared = roster.now < roster.shared_until_s
    if is_shared and most is not None:
        budget = min(budget, most)
    if not is_contended and len(roster.running) <= budget:
        return budget, is_shared, None
    return budget, is_shared, divide(roster, max(budget - len(roster.running) + len(roster.plannable()), 0))


def divide(roster: Roster, budget: int) -> Shares:
    """Shares of a step of so many tokens."""
    rows: dict[str, list[Sequence]] = {}
    prompts: Counter[str] = Counter()
    for sequence in roster.plannable():
        if sequence.request.is_batch or sequence.num_verifying:
            continue
        if sequence.holds_next:
            rows.setdefault(sequence.request.tenant, []).append(sequence)
        else:
            prompts[sequence.request.tenant] += len(sequence.tokens) - sequence.num_launched
    for first in roster.order.firsts if roster.has_row else ():
        prompts[first.request.tenant] += _num_wanted(roster, first, budget)
    wants = {tenant: len(rows.get(tenant, ())) + prompts[tenant] for tenant in {**rows, **prompts}}
    shares = fill(budget, wants)
    paused: list[Sequence] = []
    is_crowded = sum(map(len, rows.values())) > budget // 2
    for tenant, held in rows.items():
        share = shares[tenant]
        num_decodes = min(len(held), max(share - prompts[tenant], (share + 1) // 2)) if is_crowded else len(held)
        if num_decodes < len(held):
            paused += _resting(roster, tenant, held, num_decodes)
        shares[tenant] = share - num_decodes
    least = MIN_PROMPT if len(wants) > MANY_TENANTS else 0
    rooms = {tenant: max(shares[tenant], least) for tenant in prompts}
    return Shares(frozenset(paused), rooms, max(budget - sum(wants.values()), 0))


def fill(budget: int, wants: Mapping[str, int]) -> dict[str, int]:
    """Equal shares, none larger than what is wanted. The least that is wanted is given whole if it leaves a fourth: a short
    prompt takes one step then, not two."""
    shares: dict[str, int] = {}
    ordered = sorted(wants.items(), key=lambda item: (item[1], item[0]))
    for num_left, (tenant, want) in zip(range(len(ordered), 0, -1), ordered, strict=True):
        is_little = num_left == len(ordered) and want <= budget - budget // 4
        shares[tenant] = want if is_little else min(want, -(-budget // num_left))
        budget -= shares[tenant]
    return shares


def _num_wanted(roster: Roster, first: Sequence, budget: int) -> int:
    """Tokens of a waiting prompt, without those that the prefix cache has. A prompt of many steps counts whole: its tenant
    wants all it can get either way."""
    num_tokens = len(first.tokens)
    if first.wants_prompt_logprobs or num_tokens > MANY_STEPS * budget:
        return num_tokens
    return num_tokens - len(roster.pool.match(first.holding).blocks) * roster.pool.block_size


def _resting(roster: Roster, tenant: str, held: list[Sequence], num_decodes: int) -> Iterable[Sequence]:
    """All but the next so many in turn, in the order of admission and around again."""
    start = bisect_right(held, roster.turns.get(tenant, 0), key=attrgetter("epoch")) % len(held)
    turned = held[start:] + held[:start]
    if num_decodes:
        roster.turns[tenant] = turned[num_decodes - 1].epoch
    return turned[num_decodes:]
