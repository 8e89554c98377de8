"""`penstock usage`: what was used and what it cost, by key, tenant, model, tag or day."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from penstock.cli.fleet.keys import seconds


@dataclass(frozen=True, slots=True)
class Config:
    """Show what was used through a gateway and what it cost."""

    gateway: Path = field(metadata={"metavar": "FILE"})
    """The gateway's settings, which name its database"""
    by: tuple[str, ...] = ("tenant", "model")
    """What to sum by: key, tenant, model, tag, day"""
    since: str = "30d"
    """How far back, as 90m, 12h or 30d"""
    tenant: str = ""
    """Of this tenant alone"""
    json: bool = False
    """As JSON, a line a sum"""


def run(config: Config) -> int:
    from penstock.assembly.fleet.gateway import open_gateway_database
    from penstock.service.gateway.accounts.budgets import budgets
    from penstock.service.gateway.accounts.money import shown
    from penstock.service.gateway.accounts.usage import usage_sums
    from penstock.service.gateway.settings import read_settings

    database = open_gateway_database(read_settings(config.gateway))
    try:
        sums = usage_sums(database, config.by, since=time.time() - seconds(config.since), tenant=config.tenant)
        limits = budgets(database)
    finally:
        database.close()
    if config.json:
        for one in sums:
            counts = {name: value for name, value in one._asdict().items() if name != "group"}
            print(json.dumps(dict(zip(config.by, one.group)) | counts))
        return 0
    print(f"{' '.join(config.by):32} {'requests':>10} {'prompt':>12} {'cached':>12} {'output':>12} {'cost':>14}")
    for one in sums:
        counts_text = f"{one.num_requests:>10,} {one.num_prompt:>12,} {one.num_cached:>12,} {one.num_output:>12,}"
        print(f"{' '.join(one.group):32} {counts_text} {shown(one.cost):>14}")
    for limit in limits:
        print(f"budget of {limit.scope}: {shown(limit.spent)} of {shown(limit.amount)} spent, {limit.period}")
    return 0
