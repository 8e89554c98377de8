"""Requests that an engine has or will have, whichever process that is: given, heard of, given to the next, ended.

Those that had begun when a process ended continue after the tokens already reported, recomputed like a preempted sequence.
What cannot be resumed (some choices over, prompt logprobs) ends in an error at once. A request that saw two engines die is
given to the next one alone, so that the guilty one is known.
"""

from collections import deque
from collections.abc import Callable, Iterable

from penstock.runtime.core.batch import Delta, Fault, Finish, FinishReason
from penstock.runtime.core.request import Request
from penstock.runtime.engine.stream import DeltaStream
from penstock.runtime.engine.wire import Cancel, Command, StepReport, Submit

MAX_SENT = 3
"""Engines that a request is sent to, one after another as they die; then it ends in an error."""
GONE = "the engine stopped while answering; send the request again"
SHUTTING_DOWN = "the server is shutting down; send the request elsewhere"


class OpenRequests:
    """Every request that is added ends in exactly one finish a choice, or is cancelled."""

    def __init__(self, send: Callable[[Command], None]) -> None:
        """`send` reaches the engine there is; what is sent while there is none is lost."""
        self._send = send
        self._streams: dict[int, DeltaStream] = {}
        self._held: list[DeltaStream] = []
        """Streams whose news wait for those of the frames that follow."""
        self._to_retry_alone: deque[DeltaStream] = deque()
        """Requests that saw two engines die: given to the next engine one by one."""
        self._retried_alone: DeltaStream | None = None
        """The one of them that the engine has now."""

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def streams(self) -> tuple[DeltaStream, ...]:
        return tuple(self._streams.values())

    def add(self, request: Request) -> DeltaStream:
        stream = self._streams[request.request_id] = DeltaStream(request)
        return stream

    def give(self, stream: DeltaStream) -> None:
        stream.num_sent += 1
        self._send(Submit(stream.request))

    def give_all(self) -> None:
        """A new engine is ready: it is given all that waits, those that two engines died with one by one."""
        waiting = self.streams
        self._to_retry_alone = deque(stream for stream in waiting if stream.num_sent >= MAX_SENT - 1)
        for stream in waiting:
            if stream.num_sent < MAX_SENT - 1:
                self.give(stream)
        self._retry_next_alone()

    def cancel(self, request_id: int) -> None:
        """Forget a request, wherever it is; what still arrives for it is dropped."""
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            self._send(Cancel(request_id))
            self._answered_alone(stream)

    def cancel_choice(self, request_id: int, choice: int) -> None:
        """Cancel one choice of a request; the others continue."""
        if request_id in self._streams:
            self._send(Cancel(request_id, choice))

    def take_in(self, step: StepReport, now: float, *, is_last: bool) -> None:
        """Readers have it at once unless more frames wait: then they find all of them together, after `release`."""
        streams = self._streams
        for request_id, num_computed, _ in step.prompts:
            if request_id in streams:
                streams[request_id].num_computed = num_computed
        for delta in step.deltas:
            stream = streams.get(delta.request_id)
            if stream is None:
                continue  # cancelled while this was in flight
            if stream is self._retried_alone:
                self._answered_alone(stream)
            if delta.prefix is not None and stream.is_started and stream.request.resumed:
                delta = delta._replace(prefix=None)  # reported already, by another engine
            if is_last:
                stream.push(delta, now, at_once=True)
            else:
                stream.push(delta, now, is_held=True)
                self._held.append(stream)
            if not stream.unended:
                del streams[delta.request_id]

    def release(self, now: float) -> None:
        """The last frame that waited is taken in: let readers have what was held for it."""
        for stream in self._held:
            stream.release(now)
        self._held.clear()

    def end_unresumable(self, now: float) -> tuple[Delta, ...]:
        """The engine is gone: end what no other can continue, and keep the rest for its successor. Returns the ends."""
        self._retried_alone = None
        self._to_retry_alone.clear()
        ending = [
            stream
            for stream in self._streams.values()
            if (stream.is_started and not stream.can_resume) or stream.num_sent >= MAX_SENT
        ]
        ends = self._end(ending, GONE, now)
        for stream in self._streams.values():
            if stream.is_started:
                stream.resume()
        return ends

    def end_all(self, message: str, now: float) -> tuple[Delta, ...]:
        return self._end(self.streams, message, now)

    def _end(self, streams: Iterable[DeltaStream], message: str, now: float) -> tuple[Delta, ...]:
        """An error for every choice that has not ended."""
        deltas: list[Delta] = []
        for stream in streams:
            number = stream.request.request_id
            finish = Finish(FinishReason.ERROR, message, Fault.ENGINE)
            ended = [Delta(number, choice, (), finish) for choice in stream.unended]
            deltas.extend(ended)
            for delta in ended:
                stream.push(delta, now)
            self._streams.pop(number, None)
        return tuple(deltas)

    def _retry_next_alone(self) -> None:
        self._retried_alone = None
        while self._to_retry_alone:
            stream = self._to_retry_alone.popleft()
            if stream.request.request_id in self._streams:
                self._retried_alone = stream
                self.give(stream)
                return

    def _answered_alone(self, stream: DeltaStream) -> None:
        if stream is self._retried_alone:
            self._retry_next_alone()
