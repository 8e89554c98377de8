"""A gateway put together: its settings, its database, and the outside APIs it may turn to."""

import os
import time
from pathlib import Path

from penstock.errors import ConfigError
from penstock.service.gateway.gateway import Gateway
from penstock.service.gateway.schema import GATEWAY
from penstock.service.gateway.settings import GatewaySettings, read_settings
from penstock.service.router.app import RouterApp
from penstock.service.store.database import Database, SqliteDatabase

POSTGRES = ("postgresql://", "postgres://")


def open_gateway_database(settings: GatewaySettings) -> Database:
    if settings.database.startswith(POSTGRES):
        from penstock.service.store.postgres import PostgresDatabase

        return PostgresDatabase(settings.database, [GATEWAY])
    return SqliteDatabase(settings.database, [GATEWAY])


def open_gateway(path: Path) -> Gateway:
    settings = read_settings(path)
    return Gateway(settings, open_gateway_database(settings), time.time(), journal_path(settings), path)


def journal_path(settings: GatewaySettings) -> Path:
    """Where usage waits that the database has not taken."""
    if settings.journal:
        return Path(settings.journal)
    is_file = not settings.database.startswith(POSTGRES)
    return Path(settings.database + ".journal") if is_file else Path("penstock-gateway.journal")


def close_gateway(gateway: Gateway) -> None:
    """What the database does not take now is in the journal."""
    gateway.database.close()
    gateway.ledger.close()


def add_outside(app: RouterApp, settings: GatewaySettings) -> None:
    """Keys of outside APIs come from the environment, so that no file holds them."""
    for name, outside in settings.outside.items():
        key = os.environ.get(outside.key_variable, "") if outside.key_variable else ""
        if outside.key_variable and not key:
            raise ConfigError(f"the outside API {name!r} needs a key in {outside.key_variable}, which is not set")
        app.members.add_outside(name, outside.url, outside.model, key)
