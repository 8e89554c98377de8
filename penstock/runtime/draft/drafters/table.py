"""Drafters by the name that the operator gives. A client's own prediction is used with each of them."""

from collections.abc import Callable

from penstock.runtime.draft.acceptance import MADE
from penstock.runtime.draft.drafter import Drafter
from penstock.runtime.draft.drafters.ngram import NgramDrafter
from penstock.runtime.draft.drafters.prediction import PredictionDrafter
from penstock.runtime.draft.drafters.suffix import SuffixDrafter
from penstock.runtime.draft.speculator import Speculator

DRAFTERS: dict[str, tuple[Callable[[], Drafter], ...]] = {
    "prediction": (PredictionDrafter,),
    "ngram": (PredictionDrafter, NgramDrafter),
    "suffix": (PredictionDrafter, NgramDrafter, SuffixDrafter),
    "auto": (PredictionDrafter, NgramDrafter, SuffixDrafter),
    **dict.fromkeys(MADE, (PredictionDrafter,)),
}
"""`suffix` looks for the longest end of the text that was seen before, in the request as well as in the last answers."""


def make_speculator(name: str | None, length: int | None = None, model: Drafter | None = None) -> Speculator | None:
    """None where nobody guesses. `model`, a draft model or heads, is asked beside the drafters of the table."""
    if name is None or name == "off":
        return None
    drafters = [make() for make in DRAFTERS[name]]
    return Speculator([*drafters, model] if model is not None else drafters, length=length)
