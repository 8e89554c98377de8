"""Checklists: what must be true before production and before a load test is believed, with the evidence and the remedy."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from penstock.tools.advise.data import load


@dataclass(frozen=True, slots=True)
class CheckItem:
    id: str
    text: str
    evidence: str
    """What shows that it holds; a command where there is one."""
    remedy: str


CHECKLISTS: Mapping[str, tuple[CheckItem, ...]] = {
    name: tuple(CheckItem(**one) for one in items) for name, items in load("checklists").items()
}


def checklists_data() -> dict[str, Any]:
    return {name: [asdict(item) for item in items] for name, items in CHECKLISTS.items()}
