"""Reads how an encoder pools the vectors of a text into one."""

from collections.abc import Mapping
from typing import Any, Literal

from penstock.runtime.models.reading.fields import Fields

Pooling = Literal["mean", "cls"]


def pooling_from_config(config: Mapping[str, Any]) -> Pooling:
    """From the `1_Pooling/config.json` that sentence-transformers keeps beside an encoder."""
    fields = Fields(config, "1_Pooling/config.json")
    for name in ("max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"):
        fields.expect(f"pooling_mode_{name}", False)
    is_cls = fields.flag("pooling_mode_cls_token", False)
    if is_cls == fields.flag("pooling_mode_mean_tokens", not is_cls):
        raise fields.wrong("pooling_mode_mean_tokens", "the opposite of pooling_mode_cls_token")
    return "cls" if is_cls else "mean"


def pooling_from_gguf(fields: Fields) -> Pooling:
    """Numbers 1 and 2 of llama.cpp's list; a file that names none was made for the mean."""
    return "cls" if fields.whole("pooling_type", 1, 2, 1) == 2 else "mean"
