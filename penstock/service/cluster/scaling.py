"""How many replicas there should be: a rule that checks periodically, starts more, and stops some after a period of less
load.

    pending or utilisation   what each replica is to hold
    KV                       blocks in use, where that is limited
    predicted attainment     of the requests that wait, the share whose first token comes in time, as fast as replicas serve;
                             and the same for when a replica ordered now would serve, with the arrivals expected by then
    recorded curve           what came at that time on the days before, when a replica ordered now would serve

The largest of what these ask for counts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from penstock.errors import ConfigError
from penstock.fields import check, leaf


@dataclass(frozen=True, slots=True)
class Scaling:
    min_replicas: int
    max_replicas: int
    target: float = 16.0
    """Pending requests a replica, or share of its time that it computes, to hold"""
    by: Literal["pending", "utilisation"] = "pending"
    cold_start_s: float = leaf(60.0, 0, 1e6, unit="seconds")
    """From the decision to the first request served"""
    down_delay_s: float = leaf(300.0, 0, 1e6, unit="seconds")
    """How long less must suffice before a replica is stopped"""
    interval_s: float = leaf(5.0, 0.01, 1e6, unit="seconds")
    """Between two checks"""
    kv_target: float | None = leaf(None, above=0, most=1)
    """Share of a replica's KV blocks in use to hold; None asks for no replica because of them"""
    ttft_s: float | None = leaf(None, above=0, most=1e6, unit="seconds")
    """First tokens of waiting requests are to come within this; None predicts none"""
    attainment: float = leaf(0.95, above=0, most=1)
    """Of them, the share that must"""
    window_s: float = leaf(0.0, 0, 1e6, unit="seconds")
    """In so much time replicas at most double, four more at least, whatever is asked for; 0 sets no bound"""

    def __post_init__(self) -> None:
        if not 0 <= self.min_replicas <= self.max_replicas <= 10_000 or not self.max_replicas:
            raise ConfigError(
                f"scaling from {self.min_replicas} to {self.max_replicas} replicas; choose 0 or more, and as many or more, "
                "10000 at most"
            )
        if not self.target > 0.0 or (self.by == "utilisation" and not self.target <= 1.0):
            bound = "above 0, at most 1" if self.by == "utilisation" else "above 0"
            raise ConfigError(f"the target of scaling by {self.by} is {self.target}; choose a number {bound}")
        check(self)


class Pressure(NamedTuple):
    """What the replicas there are are up against, beside requests pending."""

    kv_fraction: float = 0.0
    """Of their KV blocks, those in use, on average."""
    num_waiting: int = 0
    """Requests without a first token."""
    served_per_s: float = 0.0
    """Requests that one replica serves; 0 where that is not known yet."""
    arrivals_per_s: float = 0.0
    """Requests that come now, and how much more of them come a second later; 0 where that is not known yet."""
    growth_per_s: float = 0.0
    expected_per_s: float = 0.0
    """Requests that a recorded curve expects a second when a replica ordered now would serve; 0 where it knows none."""


DAY_S = 86_400
LEAST_STEP = 4
"""Replicas that a window lets come, however few there are."""
NO_PRESSURE = Pressure()


def predicted_attainment(num_replicas: int, pressure: Pressure, ttft_s: float) -> float:
    """Of the requests that wait, the share that is begun within `ttft_s` if replicas go on as they do.

    The i-th of them is begun when i have been served: i / (replicas * rate) seconds from now.
    """
    if not pressure.num_waiting or not pressure.served_per_s:
        return 1.0
    return min(1.0, math.floor(ttft_s * num_replicas * pressure.served_per_s) / pressure.num_waiting)


def missed_ahead(num_replicas: int, num_serving: int, pressure: Pressure, ahead_s: float, ttft_s: float) -> float:
    """Of the requests there in `ahead_s`, the share that is begun too late if there are `num_replicas` then, and
    `num_serving` until then.

    Until then the queue grows by what comes and shrinks by what is served; from then on it is served by all of them.
    """
    served, rate = pressure.served_per_s, pressure.arrivals_per_s
    if not served:
        return 0.0
    later = max(rate + pressure.growth_per_s * ahead_s, 0.0)
    arriving = 0.5 * (rate + later) * ahead_s
    queue = max(pressure.num_waiting + arriving - num_serving * served * ahead_s, 0.0)
    if num_replicas * served < later * NEARLY:
        return 1.0  # it grows without end
    return max(0.0, 1.0 - ttft_s * num_replicas * served / queue) if queue else 0.0


NEARLY = 0.98
FULL = 0.9
"""Of what replicas serve at most, what is asked of them: nearer to it queues grow by chance alone."""


class ServedRate:
    """Requests a second that a replica serves at most.

    Its best moments while requests wait show it. Before any has waited, how requests slow each other down does: with n of
    them inside, each stays a + b * n seconds, so that n / (a + b * n) are served a second, and 1 / b at most.
    """

    KEPT = 0.995
    """Of it, from one check to the next, lest what was once possible counts for ever."""
    LEARNT = 0.3
    """Of a new rate, what counts: a moment in which many ended at once is no rate."""
    REMEMBERED = 0.99
    """Of what stays told so far, from one check to the next."""
    LEAST_SPREAD = 0.25
    """Of the requests inside, their spread over their mean from which on a line through stays says something."""

    def __init__(self, per_s: float = 0.0) -> None:
        self.per_s = per_s
        self._latest = self._inside = self._best = 0.0
        self._last: tuple[int, float] | None = None
        self._sums = [0.0] * 5
        """Of 1, n, stays, n * n, n * stays."""

    def note(
        self, num_served: int, num_replicas: int, now: float, *, is_full: bool = True, num_pending: int = 0
    ) -> float:
        """So many were served so far, lately by so many replicas; `is_full` says that others waited meanwhile."""
        if self._last is not None and now > self._last[1] and num_replicas:
            latest = (num_served - self._last[0]) / (now - self._last[1]) / num_replicas
            self._latest += (self.LEARNT if self._latest else 1.0) * (latest - self._latest)
            self._inside += (self.LEARNT if self._inside else 1.0) * (num_pending / num_replicas - self._inside)
            self._learn_stay()
            self._best = max(self._latest, self.KEPT * self._best)
            if is_full or self._latest > self.per_s > 0.0:
                self.per_s = max(self._latest, self.KEPT * self.per_s)
        self._last = num_served, now
        return self.per_s or self._by_stays

    def _learn_stay(self) -> None:
        if self._latest > 0.0 and self._inside > 0.0:
            inside, stay_s = self._inside, self._inside / self._latest
            new = (1.0, inside, stay_s, inside * inside, inside * stay_s)
            self._sums = [self.REMEMBERED * before + one for before, one in zip(self._sums, new, strict=True)]

    @property
    def _by_stays(self) -> float:
        """0 while too little was seen."""
        weight, inside, stays, squares, products = self._sums
        if weight < 5.0:
            return 0.0
        spread = squares / weight - (inside / weight) ** 2
        if spread < (self.LEAST_SPREAD * inside / weight) ** 2:
            return 0.0
        slope = (products / weight - inside * stays / weight**2) / spread
        return max(1.0 / slope, self._best) if slope > 0.0 else 0.0


class ArrivalTrend:
    """Requests that come a second, smoothed, and how that changes: Holt's two lines."""

    LEVEL, SLOPE = 0.2, 0.1
    """Of what is new, what counts."""

    def __init__(self) -> None:
        self.per_s = 0.0
        self.growth_per_s = 0.0
        self._last: tuple[int, float] | None = None
        self._num_notes = 0

    def note(self, num_arrived: int, now: float) -> tuple[float, float]:
        """So many have come so far."""
        if self._last is not None and now > self._last[1]:
            seconds = now - self._last[1]
            latest = (num_arrived - self._last[0]) / seconds
            self._num_notes += 1
            if self._num_notes == 1:
                self.per_s = latest
            else:
                before = self.per_s
                self.per_s += self.LEVEL * (latest - before) + (1.0 - self.LEVEL) * self.growth_per_s * seconds
                self.per_s = max(self.per_s, 0.0)
                change = (self.per_s - before) / seconds
                self.growth_per_s += self.SLOPE * (change - self.growth_per_s)
        self._last = num_arrived, now
        return self.per_s, self.growth_per_s


class ArrivalCurve:
    """Requests a second by the time of day, learnt day by day: what came this time yesterday is expected today.

    A day is cut into `NUM_BINS`; of each, later days count for half of all.
    """

    NUM_BINS = 288
    LEARNT = 0.5

    def __init__(self, per_s: Sequence[float | None] = ()) -> None:
        """`per_s`: what an earlier run has learnt; None where nothing was seen."""
        if per_s and (len(per_s) != self.NUM_BINS or any(one is not None and not 0.0 <= one < 1e9 for one in per_s)):
            raise ConfigError(f"a curve of arrivals has {self.NUM_BINS} rates of a day, each 0 or more, or null")
        self.per_s: list[float | None] = list(per_s) or [None] * self.NUM_BINS
        self._begun: tuple[int, int, float] | None = None
        """The bin under way, counted from the epoch: its number, what had come when it began, and when that was."""

    def note(self, num_arrived: int, unix_s: float) -> bool:
        """So many have come so far; returns whether something was learnt."""
        number = int(unix_s * self.NUM_BINS // DAY_S)
        if self._begun is not None and self._begun[0] == number:
            return False
        begun, self._begun = self._begun, (number, num_arrived, unix_s)
        if begun is None or number != begun[0] + 1:
            return False  # begun in its middle, or not looked at for long
        place, rate = begun[0] % self.NUM_BINS, max(num_arrived - begun[1], 0) / max(unix_s - begun[2], 1e-9)
        before = self.per_s[place]
        self.per_s[place] = rate if before is None else before + self.LEARNT * (rate - before)
        return True

    def at(self, unix_s: float) -> float:
        """Of the bin it lies in and its neighbour, as near as it is to the middle of each; 0 where neither is known."""
        place = unix_s * self.NUM_BINS / DAY_S - 0.5
        first, share = int(place // 1), place % 1
        known = [
            (weight, rate)
            for number, weight in ((first, 1.0 - share), (first + 1, share))
            if (rate := self.per_s[number % self.NUM_BINS]) is not None
        ]
        total = sum(weight for weight, _ in known)
        return sum(weight * rate for weight, rate in known) / total if total else 0.0


class Scaler:
    """Remembers since when fewer replicas would have sufficed, and when the last window of growth began."""

    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling
        self._less_since: float | None = None
        self._window: tuple[float, int] | None = None
        """When it began, and how many replicas there were."""

    def wanted(
        self, num_now: int, num_pending: int, busy_fraction: float, now: float, pressure: Pressure = NO_PRESSURE
    ) -> int:
        """Replicas there should be, given those ordered, their pending requests and how busy they were since the last check."""
        scaling = self._scaling
        if scaling.by == "pending":
            needed = -int(-num_pending // scaling.target)
        else:
            needed = -int(-num_now * busy_fraction // scaling.target)
            if num_pending:
                needed = max(needed, 1)
        needed = max(needed, self._needed_by(pressure, num_now))
        needed = min(max(needed, scaling.min_replicas), scaling.max_replicas)
        if needed >= num_now:
            self._less_since = None
            return self._in_window(needed, num_now, now)
        if self._less_since is None:
            self._less_since = now
        if now - self._less_since < scaling.down_delay_s:
            return num_now
        self._less_since = now
        return num_now - 1

    def _in_window(self, needed: int, num_now: int, now: float) -> int:
        """A moment's rush orders no fleet: as many again as there were when the window began, or LEAST_STEP."""
        window_s = self._scaling.window_s
        if not window_s or needed == num_now:
            return needed
        if self._window is None or now - self._window[0] >= window_s:
            self._window = now, num_now
        before = self._window[1]
        return max(min(needed, before + max(before, LEAST_STEP)), num_now)

    @property
    def cold_start_s(self) -> float:
        return self._scaling.cold_start_s

    def learn_start(self, seconds: float) -> None:
        """A replica took so long from its order to its first request: those to come are expected to."""
        self._scaling = replace(self._scaling, cold_start_s=seconds)

    def _needed_by(self, pressure: Pressure, num_now: int) -> int:
        """Replicas that KV in use and waiting requests ask for."""
        scaling, needed = self._scaling, 0
        if scaling.kv_target is not None:
            needed = math.ceil(num_now * pressure.kv_fraction / scaling.kv_target - 1e-9)
        if pressure.expected_per_s and pressure.served_per_s:
            needed = max(needed, math.ceil(pressure.expected_per_s / (FULL * pressure.served_per_s) - 1e-9))
        if scaling.ttft_s is not None and pressure.served_per_s:
            least = num_now
            while least < scaling.max_replicas and not self._is_attained(least, pressure):
                least += 1
            while least > 0 and self._is_attained(least - 1, pressure):
                least -= 1
            needed = max(needed, least, self._needed_ahead(pressure, num_now, scaling.ttft_s))
        return needed

    def _needed_ahead(self, pressure: Pressure, num_now: int, ttft_s: float) -> int:
        """Replicas with which few enough requests are late once one that is ordered now would serve."""
        scaling = self._scaling
        least = math.ceil(pressure.arrivals_per_s / (FULL * pressure.served_per_s) - 1e-9)
        most_missed = 1.0 - scaling.attainment
        while least < scaling.max_replicas:
            if missed_ahead(least, min(num_now, least), pressure, scaling.cold_start_s, ttft_s) <= most_missed:
                break
            least += 1
        return least

    def _is_attained(self, num_replicas: int, pressure: Pressure) -> bool:
        ttft_s = self._scaling.ttft_s
        return ttft_s is None or predicted_attainment(num_replicas, pressure, ttft_s) >= self._scaling.attainment
