"""`penstock chat`: talk with a model in the terminal."""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

from penstock.cli.loading import adapter_at, open_llm
from penstock.cli.talk.sampling import SamplingConfig
from penstock.config import CacheConfig, EngineConfig, ModelConfig, ParallelConfig, SchedulerConfig
from penstock.console.speech import dimmed, shown, write_text
from penstock.errors import RequestError

if TYPE_CHECKING:
    from penstock.offline.completion import Completion
    from penstock.offline.llm import LLM

MAX_SEQUENCES = 4
"""One person talks; what rows cost is saved."""

HELP = """\
  /clear          forget the conversation
  /system TEXT    set the system message and forget the conversation; without TEXT remove it
  /help           this
  /exit           leave, as Ctrl-D does
A line that ends with a backslash goes on in the next. Ctrl-C stops an answer; once more, or when none is coming, it leaves."""


@dataclass(frozen=True, slots=True)
class Config:
    """Talk with a model in the terminal.

    Lines are messages; /help lists what else can be typed. Messages may be piped in, too.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    system: str = ""
    """Who the model is and how it answers: the system message"""
    adapter: str | None = field(default=None, metadata={"metavar": "[NAME=]PATH"})
    """Adapter to lay over the model: a PEFT directory or a GGUF adapter"""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)


def run(config: Config) -> int:
    scheduler = SchedulerConfig(max_sequences=MAX_SEQUENCES)
    start_s = time.monotonic()
    adapters, name = adapter_at(config.adapter)
    with open_llm(EngineConfig(config.model, config.cache, scheduler, config.parallel, adapter=adapters)) as llm:
        chat = TerminalChat(llm, config.sampling, config.system, name)
        chat.check()
        _aside(f"{llm.files.name}, ready in {time.monotonic() - start_s:.1f} s; /help lists commands, Ctrl-D leaves")
        chat.talk(_lines())
    return 0


class TerminalChat:
    """A conversation. What was said of a stopped answer stays said."""

    def __init__(self, llm: "LLM", sampling: SamplingConfig, system: str = "", adapter: str = "") -> None:
        self._llm = llm
        self._adapter = adapter
        self._sampling = sampling
        self._system = system
        self._messages: list[dict[str, Any]] = []

    def check(self) -> None:
        """Raise now what would otherwise be raised at the first message."""
        self._llm.render_chat([*self._opening, {"role": "user", "content": "Hello"}])

    def talk(self, lines: Iterator[str]) -> None:
        with contextlib.suppress(EOFError, KeyboardInterrupt):
            for message in _messages(lines):
                if not message.strip():
                    continue
                if message.startswith("/"):
                    if not self.obey(*message[1:].split(maxsplit=1)):
                        return
                else:
                    self.answer(message)

    def obey(self, command: str = "", rest: str = "") -> bool:
        """Do what a line with a slash says; False to leave."""
        if command in ("exit", "quit", "bye"):
            return False
        if command == "clear":
            self._messages.clear()
            _aside("forgotten")
        elif command == "system":
            self._system = rest
            self._messages.clear()
            _aside("noted; a new conversation starts")
        else:
            _aside(HELP if command == "help" else f"there is no /{command}; there are:\n{HELP}")
        return True

    def answer(self, message: str) -> None:
        self._messages.append({"role": "user", "content": message})
        try:
            timing = Timing(time.monotonic())
            completion = self._stream(timing)
        except RequestError as error:
            self._messages.pop()
            _aside(f"{error}\n/clear starts anew")
            return
        print(flush=True)
        if completion is not None:
            self._messages.append({"role": "assistant", "content": completion.text})
            _aside(timing.described(completion))

    @property
    def _opening(self) -> list[dict[str, Any]]:
        return [{"role": "system", "content": self._system}] if self._system else []

    def _stream(self, timing: "Timing") -> "Completion | None":
        completion = None
        params = self._sampling.params(self._llm.files.tokenizer)
        stream = self._llm.stream_chat([*self._opening, *self._messages], params, adapter=self._adapter)
        with contextlib.closing(stream), _interruptible() as is_interrupted:  # type: ignore[type-var]
            for update in stream:
                completion = update.completion
                timing.note(update.num_tokens)
                if update.reasoning:
                    sys.stdout.write(dimmed(update.reasoning, sys.stdout))
                write_text(update.text)
                if is_interrupted():
                    break
        return completion


@dataclass(slots=True)
class Timing:
    """When the tokens of an answer came."""

    start_s: float
    first_s: float = 0.0
    last_s: float = 0.0
    num_tokens: int = 0

    def note(self, num_tokens: int) -> None:
        if num_tokens:
            self.last_s = time.monotonic()
            self.first_s = self.first_s or self.last_s
            self.num_tokens += num_tokens

    def described(self, completion: "Completion") -> str:
        prompt = f"prompt {len(completion.prompt_ids):,} tokens"
        if completion.prefix is not None:
            prompt += f" ({completion.prefix.num_tokens:,} cached)"
        parts = [f"{self.num_tokens:,} tokens"]
        if self.num_tokens > 1 and self.last_s > self.first_s:
            parts.append(f"{(self.num_tokens - 1) / (self.last_s - self.first_s):.1f} tokens/s")
        parts += [f"first after {max(self.first_s - self.start_s, 0.0):.2f} s", prompt]
        finish = completion.choices[0].finish
        return ", ".join(parts) + (", stopped" if finish is None else f", {finish.message}" if finish.message else "")


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Ctrl-C within is noted, so that no step of the engine is torn; a second one is not patient."""
    count = 0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        if count > 1:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: count > 0
    finally:
        signal.signal(signal.SIGINT, before)


def _messages(lines: Iterator[str]) -> Iterator[str]:
    """Lines joined where they end with a backslash."""
    parts: list[str] = []
    for line in lines:
        parts.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            yield "\n".join(parts)
            parts = []
    if parts:
        yield "\n".join(parts)


def _lines() -> Iterator[str]:
    """What is typed, with editing and a memory of former lines; or what is piped in."""
    if not sys.stdin.isatty():
        yield from (line.removesuffix("\n").removesuffix("\r") for line in sys.stdin)
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (input() edits lines once it is there)
    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return


def _aside(text: str) -> None:
    print(dimmed(text, sys.stderr) if sys.stderr.isatty() else shown(text), file=sys.stderr, flush=True)
