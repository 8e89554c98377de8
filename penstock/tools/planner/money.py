"""What it costs: an hour of a fleet, a million tokens, and a month beside an API. All in US dollars."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.fields import check, setting
from penstock.runtime.core.batch import Batch
from penstock.tools.cost.cost import Cost, decode_chunks, plain_chunk

if TYPE_CHECKING:  # numpy comes with it, which the flags of a command need not
    from penstock.tools.planner.demand import Sizes

HOURS_PER_MONTH = 730.0
SECONDS_PER_MONTH = HOURS_PER_MONTH * 3600.0
MILLION = 1e6
PURCHASE = {"on-demand": 1.0, "reserved": 0.6, "spot": 0.35}
"""Shares of a list price that hours cost bought for a year, or on devices that may be taken back: usual of large clouds."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What self-hosting is weighed with."""

    utilization: float = setting(0.7, above=0, most=1)
    """Share of its capacity that a fleet is used at, over a month"""
    engineer_hours: float = setting(20.0, 0, 1e6)
    """Hours a month somebody spends on it"""
    engineer_price: float = setting(100.0, 0, 1e6)
    """Dollars an hour of that person"""
    api_in: float | None = setting(None, 0, 1e6)
    """Dollars a million prompt tokens of the API to compare with"""
    api_out: float | None = setting(None, 0, 1e6)
    """Dollars a million answer tokens of the API to compare with"""
    api_cached: float | None = setting(None, 0, 1e6)
    """Dollars a million prompt tokens that were sent before, where the API has a price for them"""
    api_batch: float = setting(1.0, 0, 1)
    """Share of its prices that the API asks, such as 0.5 for batches"""

    def __post_init__(self) -> None:
        check(self)
        if (self.api_in is None) != (self.api_out is None):
            raise ConfigError("an API has a price for prompts and one for answers; give api-in and api-out")


@dataclass(frozen=True, slots=True)
class TokenPrice:
    """Dollars a million tokens at full use of the capacity."""

    prompt: float
    answer: float
    blended: float
    """Of all tokens, prompts' and answers' alike."""


def token_price(hourly: float, rate: float, sizes: "Sizes", prompt_share: float) -> TokenPrice:
    """`rate` is what the hourly price carries; `prompt_share` is the part of the device's time that prompts take."""
    per_hour = rate * 3600.0
    return TokenPrice(
        prompt=hourly * prompt_share / (per_hour * sizes.mean_prompt) * MILLION,
        answer=hourly * (1.0 - prompt_share) / (per_hour * sizes.mean_answer) * MILLION,
        blended=hourly / (per_hour * sizes.mean_total) * MILLION,
    )


def prompt_time_share(cost: Cost, sizes: "Sizes", num_sequences: float, budget: int) -> float:
    """Of the time a request takes of a full device: its prompt in full steps, its answer as one of a batch."""
    count = max(1, round(num_sequences))
    decode = Batch(0, tuple(decode_chunks(count, round(sizes.mean_held))))
    answer_s = sizes.mean_answer * cost.step_s(decode) / count
    length = min(budget, max(1, round(sizes.mean_prompt)))
    whole = Batch(0, tuple(plain_chunk(row, 0, length) for row in range(max(1, budget // length))))
    prompt_s = sizes.mean_prompt * cost.step_s(whole) / whole.num_tokens
    return prompt_s / (prompt_s + answer_s)


@dataclass(frozen=True, slots=True)
class SelfHost:
    """A month of the fleet beside a month of an API, for the same requests."""

    num_replicas: int
    """Whole ones, none used at more than may be."""
    gpu_dollars: float
    engineer_dollars: float
    requests: float
    """Asked in a month."""
    api_dollars: float | None
    break_even_requests: float | None
    """A month, from which on self-hosting is the cheaper; None if it never is, or nothing is compared."""

    @property
    def dollars(self) -> float:
        return self.gpu_dollars + self.engineer_dollars


def api_price(num_prompt: float, num_cached: float, num_answer: float, assumed: Assumptions) -> float | None:
    """Dollars that the API asks for a request of which so many prompt tokens were sent before."""
    if assumed.api_in is None or assumed.api_out is None:
        return None
    cached = min(num_cached, num_prompt) if assumed.api_cached is not None else 0.0
    prompt = (num_prompt - cached) * assumed.api_in + cached * (assumed.api_cached or 0.0)
    return (prompt + num_answer * assumed.api_out) * assumed.api_batch / MILLION


def self_host(
    *,
    rate: float,
    replica_rate: float,
    replica_hourly: float,
    sizes: "Sizes",
    assumed: Assumptions,
    num_cached: float = 0.0,
) -> SelfHost:
    """Whole replicas, each used at no more than `utilization` of what it carries, run all month."""
    requests = rate * SECONDS_PER_MONTH
    useful = replica_rate * assumed.utilization
    engineer = assumed.engineer_hours * assumed.engineer_price
    num_replicas = math.ceil(rate / useful)
    gpu = num_replicas * replica_hourly * HOURS_PER_MONTH
    api, break_even = None, None
    each = api_price(sizes.mean_prompt, num_cached, sizes.mean_answer, assumed)
    if each is not None:
        api = requests * each
        break_even = break_even_requests(each, useful * SECONDS_PER_MONTH, replica_hourly * HOURS_PER_MONTH, engineer)
    return SelfHost(num_replicas, gpu, engineer, requests, api, break_even)


def break_even_requests(api_each: float, replica_requests: float, replica_month: float, fixed: float) -> float | None:
    """Requests a month from which whole replicas and a fixed cost are no dearer than paying for each request.

    With n replicas, self-hosting costs fixed + n x replica_month for up to n x replica_requests requests; an API costs the same
    at (fixed + n x replica_month) / api_each. The least n at which that many still fit is the answer.
    """
    gained = replica_requests * api_each - replica_month
    if gained <= 0.0:
        return None
    num_replicas = max(1, math.ceil(fixed / gained))
    return (fixed + num_replicas * replica_month) / api_each
