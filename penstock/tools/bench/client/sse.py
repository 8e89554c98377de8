"""Server-sent events out of bytes as they come: however a stream is cut, the same events."""

from penstock.errors import EngineError

MAX_EVENT_BYTES = 16 * 2**20


class EventParser:
    """Feed it bytes; it hands back the data of each event that is complete. Names, ids and comments are passed over."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._is_after_return = False

    def feed(self, data: bytes) -> list[bytes]:
        if self._is_after_return and data.startswith(b"\n"):
            data = data[1:]
            self._is_after_return = False
        if b"\r" in data:
            # A line may end with \r, \n or both. A \r ends it at once; a \n that follows in the next bytes is then skipped.
            self._is_after_return = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        elif data:
            self._is_after_return = False
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MAX_EVENT_BYTES:
            raise EngineError(f"the server sent an event of more than {MAX_EVENT_BYTES:,} bytes")
        events = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line and self._data:
                events.append(b"\n".join(self._data) if len(self._data) > 1 else self._data[0])
                self._data = []
        return events
