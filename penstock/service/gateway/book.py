"""What holds now: the rules of the file and of the database, the keys, the budgets. Looked at again whenever they change."""

import logging
from pathlib import Path

from penstock.errors import ConfigError
from penstock.service.gateway import rules
from penstock.service.gateway.accounts import budgets
from penstock.service.gateway.accounts.money import nanodollars
from penstock.service.gateway.keys import KeyRing, list_keys
from penstock.service.gateway.limits import Tier
from penstock.service.gateway.schema import change_number
from penstock.service.gateway.settings import GatewaySettings, read_settings
from penstock.service.store.database import Database

LOGGER = logging.getLogger(__name__)


class RuleBook:
    """Written by `look` alone; read by anyone."""

    def __init__(self, base: GatewaySettings, database: Database, unix_s: float, path: Path | None = None) -> None:
        """`path` is the file that `base` was read from, read again when it changes."""
        self.base = base
        self.tiers: dict[str, Tier] = {}
        self._take_up(base)
        self.ring = KeyRing([])
        self.budgeted: frozenset[str] = frozenset()
        self.ranks: dict[int, float] = {}
        self._database = database
        self._path = path
        self._stamp = self._file_stamp()
        self._number = -1
        self.look(unix_s)

    def look(self, unix_s: float) -> bool:
        """Take in what is new; returns whether anything was. Blocks; raises StoreError."""
        number, stamp = self._database.read(change_number).result(), self._file_stamp()
        if number == self._number and stamp == self._stamp:
            return False
        if stamp != self._stamp:
            self._stamp = stamp
            self._read_file()
        found = self._database.read(rules.rules_of).result()
        try:
            self._take_up(rules.merged(self.base, found))
        except ConfigError as error:
            LOGGER.error("the rules of file and database do not go together, the last ones stay: %s", error)
        self._set_budgets(unix_s)
        self.ring = KeyRing(list_keys(self._database))
        self.budgeted = frozenset(budget.scope for budget in budgets.budgets(self._database))
        priorities = self.settings.priorities
        last = max(len(priorities) - 1, 1)
        self.ranks = {one: number / last if len(priorities) > 1 else 1.0 for number, one in enumerate(priorities)}
        self._number = number
        return True

    def _take_up(self, settings: GatewaySettings) -> None:
        """Its tiers first, and none is forgotten: requests are admitted meanwhile."""
        self.tiers |= {name: settings.tier(name) for name in ("default", *settings.tiers)}
        self.settings = settings

    def _set_budgets(self, unix_s: float) -> None:
        known = {one.scope: (one.amount, one.period) for one in budgets.budgets(self._database)}
        for name, tenant in self.settings.tenants.items():
            scope = f"tenant:{name}"
            if tenant.budget_usd is not None:
                wanted = (nanodollars(tenant.budget_usd), tenant.budget_period)
                if known.get(scope) != wanted:
                    budgets.set_budget(self._database, scope, *wanted, unix_s)

    def _read_file(self) -> None:
        if self._path is None:
            return
        try:
            self.base = read_settings(self._path)
            LOGGER.warning("the gateway's file %s is read again", self._path.name)
        except ConfigError as error:
            LOGGER.error("the gateway's file changed and is wrong, the rules before stay: %s", error)

    def _file_stamp(self) -> tuple[int, int]:
        try:
            status = self._path.stat() if self._path is not None else None
        except OSError:
            return self._stamp if hasattr(self, "_stamp") else (0, 0)
        return (status.st_mtime_ns, status.st_size) if status is not None else (0, 0)
