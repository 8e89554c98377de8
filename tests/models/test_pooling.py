"""How an encoder's vectors become one is read from the file beside it, or refused."""

from typing import Any

import pytest

from penstock.errors import ModelFileError
from penstock.runtime.models.registry import read_config
from tests.models.test_real import MINILM


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, "mean"),
        ({}, "mean"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode_cls_token": True}, "cls"),
    ],
)
def test_mean_or_first_token(config: dict[str, Any] | None, expected: str) -> None:
    assert read_config(MINILM, pooling=config).spec.pooling == expected


@pytest.mark.parametrize(
    "config",
    [
        {"pooling_mode_max_tokens": True},
        {"pooling_mode_lasttoken": True},
        {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
        {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": False},
        {"pooling_mode_cls_token": "yes"},
    ],
)
def test_other_ways_are_refused_by_name(config: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError, match=r"1_Pooling/config\.json: pooling_mode_"):
        read_config(MINILM, pooling=config)
