"""What comes of a prompt offline: its answers, as they grow. Knows neither engine nor device."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.errors import CapacityError, EngineError, PenstockError, RequestError
from penstock.runtime.core.batch import Delta, Fault, Finish, FinishReason, Logprob, PrefixHit
from penstock.runtime.core.request import Request
from penstock.runtime.text.stream.segments import ToolCallArguments, ToolCallStart
from penstock.runtime.text.stream.stream import TextDelta, TextStream

Prompt = str | Sequence[int]


@dataclass(slots=True)
class OfflineCall:
    """A tool that an answer calls; the arguments are JSON text."""

    name: str
    arguments: str = ""


@dataclass(slots=True)
class Choice:
    """One answer to a prompt, complete once `finish` is there."""

    text: str = ""
    """Everything the model said, reasoning left out where it is recognised."""
    reasoning: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    tool_calls: list[OfflineCall] = field(default_factory=list)
    """Tools it calls, where tools were given."""
    finish: Finish | None = None
    stop: str | int | None = None
    """The stop string or token that ended it."""

    @property
    def mean_logprob(self) -> float:
        return sum(entry.logprob for entry in self.logprobs) / max(len(self.logprobs), 1)


@dataclass(slots=True)
class Completion:
    """A prompt and its answers."""

    prompt: Prompt | None
    prompt_ids: tuple[int, ...]
    choices: list[Choice]
    prefix: PrefixHit | None = None
    """What the prefix cache gave, and why no more."""
    prompt_logprobs: list[Logprob] = field(default_factory=list)
    """Of each prompt token but the first, given those before it."""
    index: int = 0
    """Which of the prompts of its call it answers."""

    @property
    def text(self) -> str:
        """The first answer."""
        return self.choices[0].text

    @property
    def is_finished(self) -> bool:
        return all(choice.finish for choice in self.choices)


@dataclass(frozen=True, slots=True)
class Update:
    """News of one choice of one completion."""

    completion: Completion
    choice: int
    text: str
    reasoning: str
    num_tokens: int


@dataclass(slots=True)
class Running:
    """A request under way and the text its choices have become so far."""

    request: Request
    completion: Completion
    streams: list[TextStream | None]
    news: deque["News"] = field(default_factory=deque)
    """Where its updates go: to whoever asked for it, whoever makes the engine step."""

    def take(self, delta: Delta) -> bool:
        """Note what is new; True if the text ended the choice and the engine does not know yet."""
        choice, stream = self.completion.choices[delta.choice], self.streams[delta.choice]
        if choice.finish is not None:
            return False
        ended_by_token = delta.finish is not None and delta.finish.stop_token_id is not None
        text = TextDelta(())
        num_before = stream.num_tokens if stream else 0
        if stream is not None:
            text = stream.feed(delta.token_ids, silent_last=ended_by_token)
        num_kept = stream.num_tokens - num_before if stream else len(delta.token_ids)
        choice.token_ids.extend(delta.token_ids[:num_kept])
        choice.logprobs.extend(delta.logprobs[:num_kept])
        self.completion.prompt_logprobs.extend(delta.prompt_logprobs)
        if delta.prefix is not None and delta.choice == 0:
            self.completion.prefix = delta.prefix
        if text.stop is not None:
            choice.finish, choice.stop = Finish(FinishReason.STOP), text.stop
        elif delta.finish is not None:
            choice.finish, choice.stop = delta.finish, delta.finish.stop_token_id
        if choice.finish is not None and stream is not None:
            text = text.then(stream.finish())
        content, reasoning = (text.content, text.reasoning) if text.segments else ("", "")
        choice.text += content
        choice.reasoning += reasoning
        for segment in text.segments:
            if isinstance(segment, ToolCallStart):
                choice.tool_calls.append(OfflineCall(segment.name))
            elif isinstance(segment, ToolCallArguments):
                choice.tool_calls[segment.call].arguments += segment.text
        self.news.append((self, Update(self.completion, delta.choice, content, reasoning, num_kept)))
        return choice.finish is not None and delta.finish is None

    @property
    def fault(self) -> PenstockError | None:
        """Why it failed, if it did."""
        for choice in self.completion.choices:
            finish = choice.finish
            if finish is not None and finish.reason is FinishReason.ERROR:
                if finish.fault is Fault.REQUEST:
                    return RequestError(finish.message)
                return (CapacityError if finish.fault is Fault.CAPACITY else EngineError)(finish.message)
        return None


News = tuple[Running, Update]
