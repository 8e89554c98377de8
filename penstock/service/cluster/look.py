"""A look at the state of a running service, from any machine of its cluster."""

from typing import Any

import ray

from penstock.errors import ConfigError
from penstock.service.cluster.board import BOARD, NAMESPACE
from penstock.service.cluster.place import on_this_machine


def look(address: str) -> dict[str, Any]:
    try:
        ray.init(
            address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="error", **on_this_machine(address)
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(f"there is no Ray cluster at {address}: {error}") from error
    try:
        state: dict[str, Any] = ray.get(ray.get_actor(BOARD).read.remote(), timeout=10.0)
    except (ValueError, ray.exceptions.RayError) as error:
        raise ConfigError("no service of penstock up runs on that cluster") from error
    finally:
        ray.shutdown()
    if not state:
        raise ConfigError("the service on that cluster has only begun and said nothing yet; ask again")
    return state
