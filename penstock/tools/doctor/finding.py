"""What a doctor says: a verdict on one thing, in one layer of a service, with its evidence and the way out."""

from dataclasses import dataclass
from enum import Enum, StrEnum


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
