"""Where the state of a running service is kept for `penstock status`: an actor with a name, written by whoever runs it."""

from typing import Any

NAMESPACE = "penstock"
BOARD = "board"


class Board:
    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state

    def write(self, state: dict[str, Any]) -> None:
        self._state = state

    def read(self) -> dict[str, Any]:
        return self._state
