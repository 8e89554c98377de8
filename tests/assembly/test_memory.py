"""Kinds of memory that do not go together are refused by one sentence that names what to leave out."""

import pytest

from penstock.assembly.machines import make_engine
from penstock.assembly.peers import PeerSettings
from penstock.config import CacheConfig, EngineConfig, ModelConfig, SpeculationConfig
from penstock.errors import ConfigError

FORGETS = "streaming:4+60"


@pytest.mark.parametrize(
    ("cache", "peers", "fault"),
    [
        (
            CacheConfig(long_context=FORGETS, kv_host="8MiB"),
            None,
            "--kv-host and --kv-disk .* --long-context streaming:4.60 .* leave them",
        ),
        (
            CacheConfig(long_context=FORGETS),
            PeerSettings("127.0.0.1", b"key"),
            "--role .* --long-context streaming:4.60 .* leave it out",
        ),
    ],
)
def test_what_forgets_keeps_no_blocks(cache: CacheConfig, peers: PeerSettings | None, fault: str) -> None:
    config = EngineConfig(ModelConfig("default"), cache, speculation=SpeculationConfig(speculate="off"))
    with pytest.raises(ConfigError, match=fault):
        make_engine(config, lambda _: None, peers=peers)
