"""Roles that follow the load: of replicas that could do either, how many compute prompts alone is decided again and again.

One replica changes at a time, and only once what it is doing has ended.
"""

from operator import attrgetter
from urllib.parse import urlsplit

from penstock.service.router.fleet import LiveFleet, LiveReplica
from penstock.service.router.handover import FETCHED_BYTES_S, RoleLoad, wanted_prefills

PERIOD_S = 10.0
NEWS = 0.5
"""Weight of the latest period in what is known of the load."""


class RoleTuner:
    """Told of every prompt that is sent; time is an argument."""

    def __init__(self, fleet: LiveFleet, period_s: float = PERIOD_S) -> None:
        self._fleet = fleet
        self._period_s = period_s
        self._sums: dict[str, float] = {}
        """By model, seconds of computing the prompts of this period."""
        self._rates: dict[str, float] = {}
        self._answers: dict[str, list[int]] = {}
        """By model, answers in progress whenever a prompt was sent in this period: a single look may fall into a pause."""
        self._begun_s: float | None = None

    def note(self, model: str, prompt_s: float, now: float) -> None:
        """A prompt is sent that takes so long to compute."""
        if self._begun_s is None:
            self._begun_s = now
        self._sums[model] = self._sums.get(model, 0.0) + prompt_s
        answering = [one for one in self._fleet.serving(model) if one.offer is not None and not one.only_prefills]
        self._answers.setdefault(model, []).append(sum(one.num_pending for one in answering))
        elapsed_s = now - self._begun_s
        if elapsed_s >= self._period_s:
            for name, seconds in self._sums.items():
                latest = seconds / elapsed_s
                self._rates[name] = NEWS * latest + (1.0 - NEWS) * self._rates.get(name, latest)
                answers = self._answers.pop(name, [0])
                self._retune(name, self._rates[name], sum(answers) / len(answers), now)
            self._sums, self._begun_s = dict.fromkeys(self._sums, 0.0), now

    def _retune(self, model: str, prompt_s: float, num_answers: float, now: float) -> None:
        movable = [one for one in self._fleet.serving(model) if one.offer is not None and one.offer.role == "both"]
        if any(one.is_turning for one in movable):
            return
        ready = [one for one in movable if self._fleet.takes(one, now)]
        prefills = [one for one in ready if one.only_prefills]
        others = [one for one in ready if not one.only_prefills]
        if not others:
            return
        wanted = wanted_prefills(_load(ready, others, prompt_s, num_answers), len(prefills))
        if wanted > len(prefills):
            self._fleet.assign(min(others, key=attrgetter("num_pending")), "prefill")
        elif wanted < len(prefills):
            self._fleet.assign(min(prefills, key=attrgetter("num_pending")), "both")


def _load(ready: list[LiveReplica], others: list[LiveReplica], prompt_s: float, num_answers: float) -> RoleLoad:
    offers = [one.offer for one in ready if one.offer is not None]
    places = {(one.offer.device, urlsplit(one.url).hostname) for one in ready if one.offer is not None}
    ratios = [
        one.block_bytes / one.block_size / (one.fetched_bytes_s or FETCHED_BYTES_S) * one.prompt_tokens_s
        for one in offers
    ]
    return RoleLoad(
        len(ready),
        prompt_s,
        num_answers,
        sum(one.kv_usage_fraction for one in others),
        max(ratios, default=0.0),
        is_shared=len(places) == 1 and len(offers) > 1 and offers[0].device != "",
    )
