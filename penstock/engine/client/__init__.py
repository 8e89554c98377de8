"""The engine as other processes see it: the client, and the values that cross to whoever uses it.

Owns the engine's process from outside and the requests it has. Knows no HTTP.
"""

from penstock.core.inspection import NO_PREFIX
from penstock.engine.client.client import EngineClient
from penstock.engine.client.requests import GONE, SHUTTING_DOWN
from penstock.engine.machine import Facts, Vector
from penstock.engine.matching import GrammarTime, MatchingCounts
from penstock.engine.observer import EngineView, StepView
from penstock.engine.stream import DeltaStream, folded
from penstock.engine.wire import BlocksChanged, StepReport

__all__ = [
    "GONE",
    "NO_PREFIX",
    "SHUTTING_DOWN",
    "BlocksChanged",
    "DeltaStream",
    "EngineClient",
    "EngineView",
    "Facts",
    "GrammarTime",
    "MatchingCounts",
    "StepReport",
    "StepView",
    "Vector",
    "folded",
]
