"""One page each: symptoms with their technique, layers with their faults, the loop that finds the next bottleneck."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from penstock.tools.advise.data import load


@dataclass(frozen=True, slots=True)
class Remedy:
    """A row of the cheat sheet."""

    symptom: str
    technique: str
    layer: str
    parameter: str


@dataclass(frozen=True, slots=True)
class LayerFault:
    """A row of the layers: mend a fault in the layer that has authority over it."""

    layer: str
    name: str
    fault: str
    look_at: str


@dataclass(frozen=True, slots=True)
class LoopStep:
    title: str
    text: str


_DATA = load("cheatsheet")
REMEDIES = tuple(Remedy(**one) for one in _DATA["remedies"])
LAYERS = tuple(LayerFault(**one) for one in _DATA["layers"])
LOOP = tuple(LoopStep(**one) for one in _DATA["loop"])
GLOSSARY: Mapping[str, str] = load("glossary")
"""Words of the field, each in a sentence."""


def cheatsheet_data() -> dict[str, Any]:
    return {
        "remedies": [asdict(one) for one in REMEDIES],
        "layers": [asdict(one) for one in LAYERS],
        "loop": [asdict(one) for one in LOOP],
    }
