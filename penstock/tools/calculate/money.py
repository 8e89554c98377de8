"""What tokens cost: an hour of devices over what it makes, an API's bill, and from where on one is cheaper than the other."""

import math
from dataclasses import dataclass

from penstock.errors import ConfigError
from penstock.fields import setting
from penstock.tools.calculate.sheet import Sheet, positive
from penstock.tools.planner import figures
from penstock.tools.planner.money import HOURS_PER_MONTH, MILLION, Assumptions, break_even_requests

_ASSUMED = Assumptions()


@dataclass(frozen=True)
class CostInputs:
    """What a million tokens cost, and where hosting breaks even with an API."""

    hourly: float | None = setting(None)
    """Dollars an hour of all devices"""
    monthly: float | None = setting(None)
    """Dollars a month of all devices, instead"""
    tokens_per_s: float | None = setting(None)
    """Tokens a second that they make"""
    rate: float | None = None
    """Requests a second that they carry"""
    utilization: float = setting(_ASSUMED.utilization)
    """Share of that which is used over a month"""
    hours: float = setting(HOURS_PER_MONTH)
    """Hours of a month"""
    engineer_hours: float = setting(0.0)
    """Hours a month somebody spends on it"""
    engineer_price: float = setting(_ASSUMED.engineer_price)
    """Dollars an hour of that person"""
    requests: float | None = setting(None)
    """Requests a month"""
    prompt: float = 500.0
    """Tokens of a prompt"""
    answer: float = 200.0
    """Tokens of an answer"""
    api_in: float | None = setting(None)
    """Dollars a million prompt tokens of an API"""
    api_out: float | None = setting(None)
    """Dollars a million answer tokens of an API"""
    api_each: float | None = setting(None)
    """Dollars a request of an API, instead"""


def cost(inputs: CostInputs, sheet: Sheet) -> None:
    each, month, people = inputs.api_each, inputs.monthly, inputs.engineer_hours * inputs.engineer_price
    if inputs.hourly is not None and inputs.tokens_per_s is not None:
        speed = positive("tokens_per_s", inputs.tokens_per_s)
        price = figures.dollars_per_million(inputs.hourly, speed)
        sheet.put("dollars_per_million", price, "$", "a million tokens", "hourly / (3600 x tokens a second) x 1e6")
        sheet.put("tokens_per_day", speed * 86_400.0, "tokens", "tokens a day", "tokens a second x 86,400")
    if each is None and inputs.api_in is not None and inputs.api_out is not None:
        each = (inputs.prompt * inputs.api_in + inputs.answer * inputs.api_out) / MILLION
        sheet.put("api_each", each, "$", "an API, a request", "prompt x price in + answer x price out")
    if month is None and inputs.hourly is not None:
        month = inputs.hourly * positive("hours", inputs.hours)
    if each is not None and inputs.requests is not None:
        sheet.put("api_dollars", inputs.requests * each, "$", "an API, a month", "requests x price of a request")
    carried = math.inf
    if month is not None:
        sheet.put("device_dollars", month, "$", "devices, a month", "hourly x hours")
        sheet.put("people_dollars", people, "$", "people, a month", "engineer hours x their price")
        sheet.put("host_dollars", month + people, "$", "hosting, a month", "devices + people")
        if inputs.rate is not None:
            carried = positive("rate", inputs.rate) * inputs.utilization * inputs.hours * 3600.0
            sheet.put("host_requests", carried, "", "requests carried a month", "rate x utilization x hours x 3600")
            sheet.put("host_each", (month + people) / carried, "$", "hosting, a request", "hosting / requests carried")
    if month is None or each is None:
        if not sheet.figures:
            raise ConfigError(
                "nothing to work out: give hourly and tokens-per-s, or prices of an API, or both to compare"
            )
        return
    even = break_even_requests(each, carried, month, people)
    label, formula = "requests a month to break even", "(devices + people) / price of a request"
    sheet.put("break_even_requests", even, "", label, formula)
    if inputs.requests is not None:
        ratio = inputs.requests * each / (month + people)
        sheet.put("api_over_host", ratio, "", "an API costs times as much", "API bill / (devices + people)")
