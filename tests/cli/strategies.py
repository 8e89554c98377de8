"""Random configs: every value a flag can take, and engine configs that pass their own checks."""

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from penstock.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from penstock.console.flags import Flag, flags_of
from tests.cli.orchard import Config, Garden, Tree

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["--json", "-h", "--", "-", "", "--note=x", "\x00\x7f\x85", "\r\n", '"""', "\\", "[garden]", "nan", "héllo"]
)
ITEMS: dict[type, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: st.integers(min_value=0),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    Path: TEXT.map(Path),
}


def values_of(flag: Flag) -> st.SearchStrategy[Any]:
    item = st.sampled_from(flag.choices) if flag.choices else ITEMS[flag.kind]
    if flag.is_many:
        return st.lists(item, max_size=3).map(tuple)
    return st.none() | item if flag.is_optional else item


def _members(owner: type) -> dict[str, st.SearchStrategy[Any]]:
    return {flag.name: values_of(flag) for flag in flags_of(owner)}


trees = st.builds(Tree, **_members(Tree))
gardens = st.builds(
    Garden, tree=trees, **{flag.name: values_of(flag) for flag in flags_of(Garden) if flag.owner is Garden}
)
orchards = st.builds(
    Config, garden=gardens, **{flag.name: values_of(flag) for flag in flags_of(Config) if flag.owner is Config}
)
counts = st.integers(1, 10**9)
_kept = _members(ModelConfig) | {"max_context": st.none() | counts}
engines = st.builds(
    EngineConfig,
    model=st.builds(ModelConfig, **_kept | {"weights": st.sampled_from(["auto", "fp8"])})
    | st.builds(ModelConfig, **_kept | {"weights": st.just("packed"), "dtype": st.just("auto")}),
    cache=st.builds(
        CacheConfig,
        block_size=st.sampled_from([8, 16, 32, 64, 128]),
        num_blocks=st.none() | counts,
        memory_fraction=st.floats(0.0, 1.0, exclude_min=True),
        prefix_caching=st.booleans(),
    ),
    scheduler=st.builds(
        SchedulerConfig,
        **_members(SchedulerConfig)
        | {"max_batch_tokens": st.integers(256, 10**6), "max_sequences": st.integers(1, 256)}
        | {"max_waiting": counts, "max_waiting_tokens": counts, "gather_s": st.floats(0.0, 60.0)}
        | {"tpot_target_ms": st.none() | st.floats(1.0, 60_000.0)},
    ),
)
configs = orchards | engines
