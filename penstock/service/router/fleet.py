"""The replicas behind the router and what is known of each: the sole owner of that state. Pure: told the time, does no I/O.

A replica is ready when its probes say so, it is not being drained, its breaker lets a request through and it is no outlier.
The last replica that can be reached is never shut out by breaker or ejection: a doubtful answer beats none.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import median

from penstock.errors import CapacityError, ConfigError
from penstock.service.kv_events import BlockOffer, Frame
from penstock.service.router.breaker import Breaker
from penstock.service.router.policy import Policy, ReplicaView, RouteChoice, RoutedCall

QUIET_S = 0.5
SILENT_S = 1.5
"""A replica that was asked how it is and sent nothing at all for so long is silent: free replicas take over from it."""
GONE_S = 8.0
"""After so much silence a replica counts as gone; a refused connection needs no second look."""
FIRST_SHARE = 0.1
"""Of its load that a fresh replica gets at first."""
OUTLIER_FACTOR = 5.0
"""First tokens this many times as late as the others' median make an outlier."""
OUTLIER_LEAST_S = 0.5
NUM_SAMPLES = 20
"""Answers of a replica before it is judged."""
EJECT_S = 10.0
SMOOTHING = 0.1
MAX_REASONS = 1000
MAX_NAMES = 1000
"""Names of models whose replicas are remembered, and how long a name may be for that."""
MAX_NAME = 200
LOADED_LEAD = 8
"""Requests that a replica which has the model or adapter loaded may have more than the least busy one."""


def serves(models: tuple[str, ...] | None, model: str) -> bool:
    """Whether a replica of these models, which may be unknown, answers to a name; also to adapters together: one*0.5+other."""
    if models is None or model in models:
        return True
    return ("*" in model or "+" in model) and all(piece.partition("*")[0] in models for piece in model.split("+"))


def _unless_none(ready: list[bool], wanted: list[bool]) -> list[bool]:
    """Ready ones that are wanted; where none is, all that are ready."""
    both = [one and other for one, other in zip(ready, wanted)]
    return both if True in both else ready


class ReplicaState(Enum):
    UNKNOWN = "unknown"
    """Not probed yet."""
    READY = "ready"
    UNREADY = "not ready"
    """It answers, and says that it takes no requests: loading or shutting down."""
    GONE = "gone"
    """It does not answer."""


@dataclass(slots=True, eq=False)
class LiveReplica:
    """Written by the fleet alone."""

    name: str
    url: str
    state: ReplicaState = ReplicaState.UNKNOWN
    breaker: Breaker = field(default_factory=Breaker)
    is_draining: bool = False
    is_outside: bool = False
    """An outside API: asked only by its own name, never probed."""
    models: tuple[str, ...] | None = None
    """Names it serves; None until it said so, and then it is asked for any."""
    loaded: frozenset[str] = frozenset()
    """Of these, models and adapters that lie ready there: others are loaded first."""
    num_pending: int = 0
    """Requests handed over that have not ended."""
    num_waiting_tokens: int = 0
    """Prompt tokens, as far as we can guess, of those that have not begun to be answered."""
    num_waiting: int = 0
    """Requests waiting there, by its own account."""
    kv_usage_fraction: float = 0.0
    prefixes: set[bytes] = field(default_factory=set)
    """Hashes of blocks it reported."""
    offer: BlockOffer | None = None
    """What it lets other replicas fetch, and its role; None where it says nothing of that."""
    assigned_role: str | None = None
    """What the router uses it for in place of its own role, from some moment on."""
    is_turning: bool = False
    """It gets a new role once what it is doing has ended; until then it gets nothing new."""
    heard_s: float = 0.0
    """When anything came from it: a probe's answer, or a part of any other."""
    moved_s: float = 0.0
    """When it was last given a request, or a part of an answer came from it."""
    asked_s: float | None = None
    """Since when a probe waits for an answer."""
    is_silent: bool = False
    """Nothing comes from it, or its server says that its engine is silent."""
    ready_since_s: float = 0.0
    ejected_until_s: float = 0.0
    first_byte_s: float = 0.0
    """Smoothed seconds to the first byte."""
    token_s: float = 0.0
    """Smoothed seconds a prompt token takes there."""
    num_answers: int = 0
    """Answers that these were learnt from."""
    num_served: int = 0
    num_failed: int = 0

    @property
    def role(self) -> str | None:
        """What it is used for among replicas that offer their blocks; None if it offers none."""
        return None if self.offer is None else self.assigned_role or self.offer.role

    @property
    def only_prefills(self) -> bool:
        """It answers requests only where no other replica does."""
        return self.role == "prefill"

    def forget_answers(self) -> None:
        self.num_answers = 0
        self.first_byte_s = self.token_s = 0.0


class LiveFleet:
    """`slow_start_s`: seconds over which a replica that just became ready is led up to its full share."""

    def __init__(self, slow_start_s: float = 0.0) -> None:
        self._replicas: dict[str, LiveReplica] = {}
        self._slow_start_s = slow_start_s
        self._serving: dict[str, list[LiveReplica]] = {}
        """Replicas by names they were asked for, until one comes, goes or serves something else."""
        self.models: tuple[str, ...] = ()
        """Every name that some replica serves."""
        self.reasons: Counter[str] = Counter()
        """Why requests went where they went, in the policy's words; only so many are told apart."""

    # Queries

    def __iter__(self) -> Iterator[LiveReplica]:
        return iter(self._replicas.values())

    def __len__(self) -> int:
        return len(self._replicas)

    def get(self, name: str) -> LiveReplica | None:
        return self._replicas.get(name)

    @property
    def own(self) -> list[LiveReplica]:
        """Replicas; an outside API is none."""
        return [one for one in self if not one.is_outside]

    def serving(self, model: str) -> Sequence[LiveReplica]:
        """Replicas that serve the model, as far as we know; all for no name."""
        found = self._serving.get(model)
        if found is None:
            found = [one for one in self if serves(one.models, model)] if model else self.own
            if found and len(model) <= MAX_NAME:
                if len(self._serving) >= MAX_NAMES:
                    self._serving.clear()
                self._serving[model] = found
        return found

    def is_known(self, model: str) -> bool:
        """Some replica serves it, or might; before the first has come, any may."""
        return not model or not self._replicas or bool(self.serving(model))

    def wait_s(self, model: str, now: float) -> float:
        """Until a prompt would be begun, as far as it can be told; endless where no replica takes one."""
        free = [one for one in self.serving(model) if self.takes(one, now)]
        return min((one.num_waiting_tokens * one.token_s for one in free), default=math.inf)

    def takes(self, replica: LiveReplica, now: float) -> bool:
        return (
            replica.state is ReplicaState.READY
            and not replica.is_draining
            and not replica.is_turning
            and not replica.is_silent
            and (replica.breaker.is_closed or replica.breaker.allows(now))
            and replica.ejected_until_s <= now
        )

    def views(self, replicas: Sequence[LiveReplica], now: float, tried: Sequence[str] = ()) -> list[ReplicaView]:
        """What a policy may know. Replicas in `tried` failed this request already: they are asked again only if no other is
        left.
        """
        ready = [self.takes(replica, now) for replica in replicas]
        answering = [one.offer is None or not one.only_prefills for one in replicas]
        if False in answering:
            ready = _unless_none(ready, answering)
        if True not in ready:  # a doubtful one rather than none
            ready = [replica.state is ReplicaState.READY and not replica.is_draining for replica in replicas]
        if tried:
            ready = _unless_none(ready, [replica.name not in tried for replica in replicas])
        grown_s = now - self._slow_start_s
        return [
            ReplicaView(
                replica.name,
                replica.num_pending if replica.ready_since_s <= grown_s else self._weighed(replica, now),
                replica.num_waiting_tokens,
                replica.kv_usage_fraction,
                is_ready,
                replica.prefixes,
                replica.token_s,
            )
            for replica, is_ready in zip(replicas, ready)
        ]

    def _weighed(self, replica: LiveReplica, now: float) -> int:
        """The pending requests of a fresh one, made more, so that it is not run over."""
        age_s = max(now - replica.ready_since_s, 0.0)
        share = FIRST_SHARE + (1.0 - FIRST_SHARE) * age_s / self._slow_start_s
        return int((replica.num_pending + 1) / share) - 1

    # A request

    def choose(
        self, policy: Policy, call: RoutedCall, model: str, now: float, tried: Sequence[str] = ()
    ) -> tuple[LiveReplica, RouteChoice, list[ReplicaView]]:
        """Raises CapacityError where none takes requests."""
        replicas = self.serving(model)
        if not replicas:
            raise CapacityError("no replica is known; try later")
        views = self.views(replicas, now, tried)
        is_led = self._lead_to_loaded(replicas, views, model)
        choice = policy.choose(call, views)
        if is_led:
            choice = choice._replace(why=f"{choice.why}; loaded there")
        why = choice.why if choice.why in self.reasons or len(self.reasons) < MAX_REASONS else "another reason"
        self.reasons[why] += 1
        return replicas[choice.replica], choice, views

    def _lead_to_loaded(self, replicas: Sequence[LiveReplica], views: list[ReplicaView], model: str) -> bool:
        """Leave out replicas that would load the model or adapter first, unless those that have it are far busier."""
        has_it = [model in one.loaded for one in replicas]
        if not model or True not in has_it or False not in has_it:
            return False
        ready = [index for index, view in enumerate(views) if view.is_ready]
        loaded = [index for index in ready if has_it[index]]
        if not loaded or len(loaded) == len(ready):
            return False
        least = min(views[index].num_pending for index in ready)
        near = [index for index in loaded if views[index].num_pending <= least + LOADED_LEAD]
        for index in ready if near else ():
            if index not in near:
                views[index] = views[index]._replace(is_ready=False)
        return bool(near)

    def begin(self, replica: LiveReplica, num_tokens: int, now: float) -> None:
        replica.num_pending += 1
        replica.num_waiting_tokens += num_tokens
        replica.moved_s = now
        replica.breaker.begin(now)

    def answer(self, replica: LiveReplica, num_tokens: int, waited_s: float) -> None:
        """The first byte is there."""
        replica.num_waiting_tokens -= num_tokens
        share = SMOOTHING if replica.num_answers else 1.0
        replica.num_answers += 1
        replica.first_byte_s += share * (waited_s - replica.first_byte_s)
        replica.token_s += share * (waited_s / max(num_tokens, 1) - replica.token_s)

    def end(self, replica: LiveReplica, is_good: bool | None, num_tokens: int, now: float) -> None:
        """`is_good` is None where the outcome says nothing of the replica; `num_tokens` of a prompt never begun."""
        replica.num_pending -= 1
        replica.is_turning = replica.is_turning and replica.num_pending > 0
        replica.num_waiting_tokens -= num_tokens
        if is_good is None:
            replica.breaker.give_up()
        elif is_good:
            replica.num_served += 1
            replica.breaker.succeed()
        else:
            replica.num_failed += 1
            replica.breaker.fail(now)

    # Replicas come and go

    def add(self, name: str, url: str) -> LiveReplica:
        if name in self._replicas:
            raise ConfigError(f"there is a replica {name!r} already; remove it first or choose another name")
        replica = self._replicas[name] = LiveReplica(name, url)
        self._look_at_models()
        return replica

    def _look_at_models(self) -> None:
        """A replica came, went, or serves something else."""
        self._serving.clear()
        self.models = tuple(dict.fromkeys(model for one in self.own for model in one.models or ()))

    def add_outside(self, name: str, url: str, model: str) -> LiveReplica:
        replica = self.add(name, url)
        replica.is_outside = True
        replica.models = (model,)
        replica.state = ReplicaState.READY
        self._look_at_models()
        return replica

    def remove(self, name: str) -> LiveReplica | None:
        """Nothing new goes there; what it is answering goes on."""
        replica = self._replicas.pop(name, None)
        if replica is not None:
            replica.is_draining = True
            self._look_at_models()
        return replica

    def drain(self, replica: LiveReplica) -> None:
        replica.is_draining = True

    def undrain(self, replica: LiveReplica) -> None:
        replica.is_draining = False

    def assign(self, replica: LiveReplica, role: str) -> None:
        """Use a replica for something else, once what it is doing has ended."""
        if replica.offer is None:
            raise ConfigError(
                f"replica {replica.name!r} offers no blocks; start it with --role both to change its role"
            )
        replica.is_turning = replica.role != role and replica.num_pending > 0
        replica.assigned_role = None if role == replica.offer.role else role

    def set_state(self, replica: LiveReplica, state: ReplicaState, now: float) -> bool:
        """A probe's finding; returns whether the replica's state changed. GONE counts at once."""
        replica.is_silent = False
        before, replica.state = replica.state, state
        if state is ReplicaState.READY and before is not state:
            replica.ready_since_s = now
            if before is ReplicaState.GONE:
                replica.breaker.reset()
                replica.forget_answers()
                replica.prefixes = set()
                replica.offer = None
        return before is not state

    def learn_models(self, replica: LiveReplica, models: tuple[str, ...], loaded: frozenset[str] | None = None) -> None:
        """`loaded`: those that lie ready, where it tells; else all."""
        replica.models = models or None
        replica.loaded = frozenset(models) if loaded is None else loaded
        self._look_at_models()

    def learn_offer(self, replica: LiveReplica, offer: BlockOffer | None) -> None:
        """By its own account; another generation is another engine, which holds nothing yet."""
        if replica.offer is not None and (offer is None or offer.generation != replica.offer.generation):
            replica.prefixes = set()
        replica.offer = offer

    def learn_load(self, replica: LiveReplica, num_waiting: int, kv_usage_fraction: float) -> None:
        """By its own account."""
        replica.num_waiting = num_waiting
        replica.kv_usage_fraction = kv_usage_fraction

    def learn_blocks(self, replica: LiveReplica, frame: Frame) -> None:
        """What its prefix cache holds, by its own account."""
        if frame.is_whole:
            replica.prefixes = set(frame.published)
        else:
            replica.prefixes.update(frame.published)
            replica.prefixes.difference_update(frame.removed)

    def miss(self, replica: LiveReplica, now: float) -> bool:
        """A probe got no answer in time; returns whether the replica is gone by that."""
        if now - replica.heard_s < GONE_S or replica.state is ReplicaState.GONE:
            return False
        replica.state = ReplicaState.GONE
        return True

    def find_silent(self, now: float) -> list[LiveReplica]:
        """Replicas that have fallen silent since the last look."""
        found = []
        for replica in self:
            asked_s = replica.asked_s
            if asked_s is None or replica.is_silent or replica.state is not ReplicaState.READY:
                continue
            if now - max(asked_s, replica.heard_s) >= SILENT_S:
                replica.is_silent = True
                found.append(replica)
        return found

    def find_quiet(self, now: float) -> list[LiveReplica]:
        """Replicas that have requests and have told nothing of them for a moment: worth a look before the next one is due."""
        ready = [one for one in self if one.state is ReplicaState.READY and not one.is_silent]
        return [one for one in ready if one.num_pending and now - one.moved_s >= QUIET_S]

    def forgive(self, seconds: float) -> None:
        """Time in which this process did not listen is nobody's silence."""
        for replica in self:
            replica.heard_s += seconds
            if replica.asked_s is not None:
                replica.asked_s += seconds

    def eject_outliers(self, now: float) -> list[LiveReplica]:
        """Leave those alone for a while that are far slower to begin than the others; at most a third of the fleet."""
        judged = [one for one in self if one.state is ReplicaState.READY and one.num_answers >= NUM_SAMPLES]
        room = len(self.own) // 3 - sum(1 for replica in self if replica.ejected_until_s > now)
        ejected = []
        for replica in sorted(judged, key=lambda one: -one.first_byte_s)[: max(room, 0)]:
            others = [one.first_byte_s for one in judged if one is not replica]
            if not others or replica.ejected_until_s > now:
                continue
            if replica.first_byte_s > max(OUTLIER_FACTOR * median(others), OUTLIER_LEAST_S):
                replica.ejected_until_s = now + EJECT_S
                replica.forget_answers()
                ejected.append(replica)
        return ejected
