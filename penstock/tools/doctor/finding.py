"""What a doctor says: a verdict on one thing, in one layer of a service, with its evidence and the way out."""

import json
from dataclasses import dataclass
from enum import Enum, StrEnum
from importlib.resources import files
from typing import Any, Literal


class ServiceLayer(Enum):
    """The layers of a service, from what computes to who asks."""

    L0 = "silicon"
    L1 = "drivers"
    L2 = "packaging"
    L3 = "backend"
    L4 = "scheduling"
    L5 = "gateway"
    L6 = "client"


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Finding:
    id: str
    layer: ServiceLayer
    verdict: Verdict
    symptom: str
    """What was looked at, or what is wrong."""
    evidence: str
    remedy: str = ""
    """Empty where nothing is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFault:
    """What can be wrong, and the way out, as `rules.json` words them."""

    id: str
    layer: ServiceLayer
    verdict: Verdict
    symptom: str
    remedy: str

    def finding(self, evidence: str) -> Finding:
        return Finding(self.id, self.layer, self.verdict, self.symptom, evidence, self.remedy)


def known_faults(of: Literal["server", "router"]) -> list[dict[str, Any]]:
    """The fields of each `KnownFault`. Earlier ones are reported first: they are likelier the cause of the others."""
    table = json.loads(files(__package__).joinpath("rules.json").read_text(encoding="utf-8"))
    return [one | {"layer": ServiceLayer[one["layer"]], "verdict": Verdict(one["verdict"])} for one in table[of]]
