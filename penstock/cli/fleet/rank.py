"""`penstock rank`: compute a part of a model whose engine runs on another machine."""

import signal
import threading
from dataclasses import dataclass, field

from penstock.config import EngineConfig, split_address
from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Config:
    """Compute a part of a model for an engine on another machine: penstock serve MODEL --pipeline 2 --nodes 2 --rendezvous
    HOST:PORT there, penstock rank HOST:PORT here.

    It waits for the engine, loads its own stages of the model, which must be known here by the same name, and joins the next
    engine when that one ends. Use a network that only these machines reach: what ranks exchange is not encrypted.
    """

    address: str = field(metadata={"positional": True})
    """HOST:PORT that the engine was given as --rendezvous"""
    here: str | None = None
    """Address by which the other machines reach this one (default: the one that the engine is reached from)"""


def run(config: Config) -> int:
    split_address(config.address)
    from penstock.assembly.parallel.nodes import Node

    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    print(f"penstock waits for the engine at {config.address}", flush=True)
    Node(config.address, config.here, check_model, stopping).run()
    return 0


def check_model(config: EngineConfig) -> None:
    """Raise a PenstockError if the model is not here, or cannot be cut so, or there are too few devices."""
    from penstock.assembly.parallel.ranks import check_machine, ranks_of
    from penstock.runtime.execution.device import open_device
    from penstock.runtime.files import dummy_spec, open_files

    spec = dummy_spec(config.model.model)
    try:
        found = spec if spec is not None else open_files(config.model.model).spec
    except OSError as error:
        raise ConfigError(f"{config.model.model} cannot be read on this machine: {error.strerror}") from error
    ranks_of(config).check(found)
    check_machine(config, open_device(config.model.device))
