"""Where a client does not say how tokens are drawn, the model's makers do."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from penstock.service.server.calls.generation import Caller, Generation, SamplingOptions, Texts
from penstock.service.server.calls.prepare import prepare
from penstock.service.server.text import SamplingDefaults, sampling_defaults
from tests.server.test_fields import model

MADE = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.1, "do_sample": True}


def drawn(asked: dict[str, Any]) -> dict[str, Any]:
    served = model()
    served.text = replace(served.text, defaults=sampling_defaults(MADE))
    generation = Generation(prompt=Texts(given="end"), sampling=SamplingOptions(**asked), param="prompt")
    sampling = asyncio.run(prepare(served, Caller(), generation)).requests[0].params
    return {name: getattr(sampling, name) for name in SamplingDefaults._fields}


def test_a_model_s_own_values_hold_until_a_client_names_others() -> None:
    own = {name: value for name, value in MADE.items() if name in SamplingDefaults._fields}
    assert drawn({}) == own
    asked = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
    for name, value in asked.items():
        assert drawn({name: value}) == own | {name: value}


@pytest.mark.parametrize("wrong", [None, "0.5", True, -1, 1e9, float("nan"), [0.5]], ids=str)
def test_what_is_no_such_number_is_passed_over(wrong: Any) -> None:
    assert sampling_defaults({"temperature": wrong, "top_p": wrong}) == SamplingDefaults()
