"""Laws of a plan for regions: shares add up, and the others carry everything while any one is lost."""

import json

import pytest

from penstock.cli.main import main
from penstock.errors import ConfigError
from penstock.tools.cost.hardware import HARDWARE
from penstock.tools.planner.money import PURCHASE
from penstock.tools.planner.regions import read_regions

LOAD = ("--prompts", "20-60", "--answers", "3-12", "--weights", "bf16", "--kv", "bf16", "max-devices=1", "--json")


def planned(capsys, *words: str) -> dict:
    assert main(["plan", "smollm2-135m", *LOAD, *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_any_region_may_be_lost_and_spot_hours_cost_their_share(capsys) -> None:
    words = ("--hardware", "l4,a10g", "--rate", "300", "purchase=spot", "regions=eu=.5,us@a10g=.3,asia=.2")
    data = planned(capsys, *words)
    rows = {one["name"]: one for one in data["regions"]}
    assert sum(one["rate"] for one in rows.values()) == pytest.approx(300)
    assert rows["us"]["device"] == "a10g"
    each = {one["hardware"]: one["capacity"]["requests_per_s"] for one in reversed(data["options"])}
    carried = {name: (one["num_replicas"] + one["num_spare"]) * each[one["device"]] for name, one in rows.items()}
    for lost in rows:
        assert sum(most for name, most in carried.items() if name != lost) >= 300 * 0.999
    chosen = data["chosen"]
    list_price = HARDWARE[chosen["hardware"]].price_per_hour * chosen["num_devices"]
    assert chosen["dollars_per_hour"] == pytest.approx(PURCHASE["spot"] * list_price)


@pytest.mark.parametrize("text", ["eu=.5", "eu=.5,eu=.5", "eu", "=1", "eu=2"])
def test_shares_that_do_not_add_up_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        read_regions(text)


def test_every_device_of_the_table_has_a_price() -> None:
    assert all(device.price_per_hour for device in HARDWARE.values())
    assert all("202" in device.price_source for device in HARDWARE.values()), "each price says whose it is and of when"
