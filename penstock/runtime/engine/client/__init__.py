"""The engine as other processes see it: the client, and the values that cross to whoever uses it.

Owns the engine's process from outside and the requests it has. Knows no HTTP.
"""

from penstock.runtime.core.inspection import NO_PREFIX
from penstock.runtime.engine.adapters.gate import AdapterCounts, AdapterFacts
from penstock.runtime.engine.client.client import EngineClient
from penstock.runtime.engine.client.requests import GONE, SHUTTING_DOWN
from penstock.runtime.engine.grammar_state import GrammarCounts, GrammarTime
from penstock.runtime.engine.machine import Facts, Vector
from penstock.runtime.engine.observer import EngineView, StepView
from penstock.runtime.engine.peers.counts import FAULTS, TransferCounts
from penstock.runtime.engine.stream import DeltaStream, folded
from penstock.runtime.engine.tiers.news import TierCounts
from penstock.runtime.engine.tiers.sessions import CacheAnswer, SessionFacts
from penstock.runtime.engine.wire import BlocksChanged, StepReport

__all__ = [
    "FAULTS",
    "GONE",
    "NO_PREFIX",
    "SHUTTING_DOWN",
    "AdapterCounts",
    "AdapterFacts",
    "BlocksChanged",
    "CacheAnswer",
    "DeltaStream",
    "EngineClient",
    "EngineView",
    "Facts",
    "GrammarCounts",
    "GrammarTime",
    "SessionFacts",
    "StepReport",
    "StepView",
    "TierCounts",
    "TransferCounts",
    "Vector",
    "folded",
]
