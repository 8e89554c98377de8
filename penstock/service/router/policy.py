"""Which replica gets a request: pure decisions over what replicas said of themselves, each with its reason.

The router calls them with views of live replicas, the simulator with views of real schedulers on another clock. They read no
clock and draw no random numbers: where chance is wanted it follows from a seed and the request's number. A policy that
remembers (which prefix went where) learns from its own choices alone.
"""

from bisect import bisect_right
from collections.abc import Callable, Container, Sequence
from hashlib import blake2b
from typing import ClassVar, NamedTuple, Protocol

from penstock.errors import CapacityError

POINTS_PER_REPLICA = 64
"""Places of a replica on the ring of the consistent hash; more spread the load more evenly."""
NUM_KEY_BLOCKS = 4
"""Blocks of a prompt's beginning that a consistent hash goes by."""
MAX_LEAD = 8
"""Requests that the holder of a whole prompt may have more than the least busy replica."""
MAX_PREDICTED = 200_000
"""Blocks that the predicted tree remembers over all replicas."""


class ReplicaView(NamedTuple):
    """What a policy knows of a replica at the moment of choosing."""

    name: str
    num_pending: int = 0
    """Generations handed over that have not ended."""
    num_waiting_tokens: int = 0
    """Prompt tokens handed over that are not being computed yet."""
    kv_usage_fraction: float = 0.0
    is_ready: bool = True
    """Takes requests: it is healthy and not being drained."""
    prefixes: Container[bytes] = frozenset()
    """Hashes of the blocks it reports to hold."""
    token_s: float = 0.0
    """Seconds a prompt token takes there, by what was seen of it; 0 if nothing was."""


class RoutedCall(NamedTuple):
    """What a policy sees of a request."""

    number: int
    """How many came before it."""
    session: str = ""
    """Who speaks; empty if unknown."""
    hashes: tuple[bytes, ...] = ()
    """Of the prompt's full blocks, each saying all before it."""
    num_tokens: int = 0
    """Of the prompt, as far as the caller knows."""


class RouteChoice(NamedTuple):
    replica: int
    """Its place among the views."""
    why: str
    num_blocks: int = 0
    """Blocks of the prompt expected to be there already."""


Views = Sequence[ReplicaView]


class Policy(Protocol):
    reads_hashes: ClassVar[bool] = False
    """Calls must carry the prompt's block hashes."""

    def choose(self, call: RoutedCall, views: Views) -> RouteChoice:
        """Raises CapacityError where no replica is ready."""


class RoundRobin(Policy):
    def choose(self, call: RoutedCall, views: Views) -> RouteChoice:
        ready = _ready(views)
        return RouteChoice(ready[call.number % len(ready)], "next in turn")


class LeastPending(Policy):
    def choose(self, call: RoutedCall, views: Views) -> RouteChoice:
        """Of equals the next in turn, so that an idle fleet does not load its first replica only."""
        counts = [view.num_pending if view.is_ready else _NEVER for view in views]
        least = min(counts, default=_NEVER)
        if least == _NEVER:
            raise _nobody(views)
        turn = call.number % len(views)
        try:
            index = counts.index(least, turn)
        except ValueError:
            index = counts.index(least)
        return RouteChoice(index, "fewest pending")


class PowerOfTwo(Policy):
    """The less loaded of two replicas drawn by lot: nearly as even as looking at all, and no herd runs to one of them."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def choose(self, call: RoutedCall, views: Views) -> RouteChoice:
        ready = _ready(views)
        if len(ready) == 1:
            return RouteChoice(ready[0], "the only one ready")
        lot = _number(f"{self._seed} {call.number}".encode())
        first = lot % len(ready)
        second = (first + 1 + (lot >> 32) % (len(ready) - 1)) % len(ready)
        one, other = ready[first], ready[second]
        chosen = one if views[one].num_pending <= views[other].num_pending else other
        return RouteChoice(chosen, f"fewer pending than {views[other if chosen == one else one].name}")


class Ring:
    """Consistent hashing: a key belongs to the next point on a ring on which every replica has many.

    A replica that joins takes keys over from all others and no key moves between those; one that leaves gives only its own
    away.
    """

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._points: list[int] = []
        self._owners: list[str] = []

    def owners(self, key: bytes, names: tuple[str, ...]) -> list[str]:
        """All names, the key's own first and then those it falls to when others are full."""
        if names != self._names:
            self._names = names
            points = sorted(
                (_number(f"{name} {place}".encode()), name) for name in names for place in range(POINTS_PER_REPLICA)
            )
            self._points = [point for point, _ in points]
            self._owners = [name for _, name in points]
        start = bisect_right(self._points, _number(key))
        return list(dict.fromkeys(self._owners[start:] + self._owners[:start]))


class ConsistentHash(Policy):
    """Prompts that begin alike go to one replica. `max_lead` spares it: above that many times the mean of pending requests,
    the next replica on the ring takes over; None never spares.
    """

    reads_hashes = True

    def __init__(self, max_lead: float | None = 1.25) -> None:
        self._ring = Ring()
        self._max_lead = max_lead

    def choose(self, call: RoutedCall, views: Views) -> RouteChoice:
        hashes = call.hashes[:NUM_KEY_BLOCKS]
        key = hashes[-1] if hashes else call.session.encode("utf-8", "surrogatepass")
        if not key:
            return _LEAST.choose(call, views)
        return self.place(key, views)

    def place(self, key: bytes, views: Views) -> RouteChoice:
        ready = _ready(views)
        by_name = {views[index].name: index for index in ready}
        owners = self._ring.owners(key, tuple(sorted(by_name)))
        if self._max_lead is not None:
            allowed = self._max_lead * (1 + sum(views[index].num_pending for index in ready)) / len(ready)
            for place, name in enumerate(owners):
                if views[by_name[name]].num_pending <= allowed:
                    return RouteChoice(by_name[name], "owns the key" if not place else f"{owners[0]} is full")
        return RouteChoice(by_name[owners[0]], "owns the key")


class SessionAffinity(Policy):
    """A session stays where it is while that replica is ready; a request without a session goes to the least loaded."""

    def __init__(self) -> None:
        self._ring = ConsistentHash(max_lead=None)

    def choose(self, call: RoutedCall, views: Views) -> RouteChoice:
        if not call.session:
            return _LEAST.choose(call, views)
        return self._ring.place(call.session.encode("utf-8", "surrogatepass"), views)._replace(why="keeps its session")


class PrefixReported(Policy):
    """Where most of the prompt is cached, by what the replicas report, unless that one is far busier than the least busy."""

    reads_hashes = True

    def __init__(self, max_lead: int = MAX_LEAD) -> None:
        self._max_lead = max_lead

    def choose(self, call: RoutedCall, views: Views) -> RouteChoice:
        return _longest(call, views, [num_held(call.hashes, view.prefixes) for view in views], self._max_lead)


class PrefixTree:
    """Which prefixes were sent where. Every hash says all before it, so a set of hashes is a radix tree.

    What was not asked for longest is forgotten first, as replicas do, by halves: a full young half becomes the old one, and
    what of the old one was not sent again is forgotten. A prefix is sent with whatever is built on it, so it stays as long.
    """

    def __init__(self, max_blocks: int) -> None:
        self._max_young = max_blocks // 2
        self._num_young = 0
        self._young: dict[str, set[bytes]] = {}
        self._old: dict[str, set[bytes]] = {}

    def num_held(self, name: str, hashes: Sequence[bytes]) -> int:
        young, old = self._young.get(name, _NONE), self._old.get(name, _NONE)
        count = 0
        for hash_ in hashes:
            if hash_ not in young and hash_ not in old:
                break
            count += 1
        return count

    def add(self, name: str, hashes: Sequence[bytes]) -> None:
        young = self._young.setdefault(name, set())
        num_before = len(young)
        young.update(hashes)
        self._num_young += len(young) - num_before
        if self._num_young >= self._max_young:
            self._old, self._young, self._num_young = self._young, {}, 0


class PrefixPredicted(Policy):
    """As reported, but guessed: a tree of the prefixes this policy has sent to each replica itself."""

    reads_hashes = True

    def __init__(self, max_blocks: int = MAX_PREDICTED) -> None:
        self._tree = PrefixTree(max_blocks)

    def choose(self, call: RoutedCall, views: Views) -> RouteChoice:
        held = [self._tree.num_held(view.name, call.hashes) for view in views]
        choice = _longest(call, views, held, MAX_LEAD)
        self._tree.add(views[choice.replica].name, call.hashes)
        return choice


class KvPressure(Policy):
    """The emptiest KV cache, in steps of a tenth, of equals the fewest pending: long answers spread by the room they take."""

    def choose(self, call: RoutedCall, views: Views) -> RouteChoice:
        ready = _ready(views)
        turn = call.number % len(views)
        best = min(
            ready,
            key=lambda index: (
                int(views[index].kv_usage_fraction * 10),
                views[index].num_pending,
                (index - turn) % len(views),
            ),
        )
        return RouteChoice(best, f"KV cache {views[best].kv_usage_fraction:.0%} full")


class PredictedLatency(Policy):
    """The earliest first token: what waits there, and what of the prompt its cache lacks, at the pace it was seen to keep.

    The cache is guessed as `PrefixPredicted` does. A replica not seen yet is taken to be as fast as the fastest.
    """

    reads_hashes = True

    def __init__(self) -> None:
        self._tree = PrefixTree(MAX_PREDICTED)

    def choose(self, call: RoutedCall, views: Views) -> RouteChoice:
        ready = _ready(views)
        paces = [views[index].token_s for index in ready if views[index].token_s]
        fastest = min(paces, default=1e-4)
        held = {index: self._tree.num_held(views[index].name, call.hashes) for index in ready}
        turn = call.number % len(views)

        def wait_s(index: int) -> float:
            view = views[index]
            missing = call.num_tokens
            if call.hashes:
                missing -= call.num_tokens * held[index] // len(call.hashes)
            return (view.num_waiting_tokens + missing + view.num_pending) * (view.token_s or fastest)

        best = min(ready, key=lambda index: (wait_s(index), (index - turn) % len(views)))
        self._tree.add(views[best].name, call.hashes)
        return RouteChoice(best, f"first token in {wait_s(best) * 1000:.1f} ms", held[best])


POLICIES: dict[str, Callable[[int], Policy]] = {
    "least-pending": lambda seed: LeastPending(),
    "round-robin": lambda seed: RoundRobin(),
    "power-of-two": PowerOfTwo,
    "session": lambda seed: SessionAffinity(),
    "consistent-hash": lambda seed: ConsistentHash(),
    "prefix-predicted": lambda seed: PrefixPredicted(),
    "prefix-reported": lambda seed: PrefixReported(),
    "kv-pressure": lambda seed: KvPressure(),
    "predicted-latency": lambda seed: PredictedLatency(),
}
"""A fresh policy by name, given a seed."""

REPORTED_POLICIES = ("prefix-reported",)
"""Policies that need the engines' own block hashes, of prompts and of caches."""

_NEVER = 2**62
_NONE: frozenset[bytes] = frozenset()
_LEAST = LeastPending()


def _longest(call: RoutedCall, views: Views, held: Sequence[int], max_lead: int) -> RouteChoice:
    """The replica that holds most of the prompt, of equals the least busy; the least busy of all if that is far less busy.

    How much busier it may be goes with the share of the prompt it holds: a system prompt that everybody begins with draws
    nobody to the one replica that had it first.
    """
    turn = call.number % len(views) if views else 0  # an idle fleet does not load its first replica only
    holders = [
        (-count, view.num_pending, (index - turn) % len(views), index)
        for index, (count, view) in enumerate(zip(held, views))
        if count and view.is_ready
    ]
    if not holders:
        return _LEAST.choose(call, views)
    less, num_pending, _, best = min(holders)
    fewest = min([view.num_pending for view in views if view.is_ready])
    if num_pending <= fewest - max_lead * less / len(call.hashes):
        return RouteChoice(best, f"holds {-less} of {len(call.hashes)} blocks", -less)
    least = _LEAST.choose(call, views).replica
    return RouteChoice(least, f"{views[best].name} holds {-less} blocks but is far busier", held[least])


def num_held(hashes: Sequence[bytes], held: Container[bytes]) -> int:
    """Blocks from the first on that are there."""
    for count, hash_ in enumerate(hashes):
        if hash_ not in held:
            return count
    return len(hashes)


def _ready(views: Views) -> list[int]:
    ready = [index for index, view in enumerate(views) if view.is_ready]
    if not ready:
        raise _nobody(views)
    return ready


def _nobody(views: Views) -> CapacityError:
    return CapacityError(f"none of {len(views)} replicas is ready; try later")


def _number(text: bytes) -> int:
    """A number that looks random and is the same everywhere."""
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")
