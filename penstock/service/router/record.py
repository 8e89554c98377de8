"""Every choice of the router as a line of JSON: what was known, what was chosen and why; no text. Read back, the same policy in
a simulator or a test chooses the same, request by request.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from penstock.lines import LineFile
from penstock.service.router.policy import ReplicaView, RouteChoice, RoutedCall, num_held


class RecordedView(msgspec.Struct, omit_defaults=True):
    name: str
    num_pending: int = 0
    num_waiting_tokens: int = 0
    kv_usage_fraction: float = 0.0
    is_ready: bool = True
    token_s: float = 0.0
    num_held: int = 0
    """Blocks of the prompt that it reported to hold."""


class Decision(msgspec.Struct):
    """One line."""

    at_s: float
    policy: str
    model: str
    number: int
    session: str
    num_tokens: int
    hashes: list[str]
    views: list[RecordedView]
    replica: str
    why: str
    num_blocks: int


class DecisionLog:
    def __init__(self, path: Path) -> None:
        self._file = LineFile(path, "route-log")
        self._encoder = msgspec.json.Encoder()

    def write(
        self, at_s: float, policy: str, model: str, call: RoutedCall, views: Sequence[ReplicaView], choice: RouteChoice
    ) -> None:
        recorded = [
            RecordedView(*one[:5], one.token_s, num_held(call.hashes, one.prefixes) if one.prefixes else 0)
            for one in views
        ]
        name, hashes = views[choice.replica].name, [hash_.hex() for hash_ in call.hashes]
        asked = (call.number, call.session, call.num_tokens, hashes)
        decision = Decision(round(at_s, 6), policy, model, *asked, recorded, name, *choice[1:])
        self._file.write(self._encoder.encode(decision))

    def close(self) -> None:
        self._file.close()
