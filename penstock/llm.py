"""A model in this process: prompts in, text out. No server, no other process, no network once the model is fetched."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from penstock.assembly import Progress, load, make_engine, size
from penstock.config import EngineConfig, configure
from penstock.core.batch import Delta, Finish, FinishReason, Logprob, PrefixHit
from penstock.core.request import Request, SamplingParams
from penstock.errors import ConfigError, EngineError, RequestError
from penstock.files import ModelFiles, no_words
from penstock.models.spec import ModelSpec
from penstock.text.stop import StopSet
from penstock.text.stream import TextDelta, TextRules, TextStream

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


@dataclass(slots=True)
class Choice:
    """One answer to a prompt, complete once `finish` is there."""

    text: str = ""
    """Everything the model said, reasoning left out where it is recognised."""
    reasoning: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
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

    @property
    def text(self) -> str:
        """The first answer."""
        return self.choices[0].text

    @property
    def is_finished(self) -> bool:
        return all(choice.finish for choice in self.choices)

    def keep_best(self, count: int) -> None:
        """Keep the likeliest answers by mean log probability of their tokens, likeliest first."""
        self.choices = sorted(self.choices, key=lambda choice: -choice.mean_logprob)[:count]


@dataclass(frozen=True, slots=True)
class Update:
    """News of one choice of one completion."""

    completion: Completion
    choice: int
    text: str
    reasoning: str
    num_tokens: int


class LLM:
    """Settings are those of `EngineConfig`, by name: `LLM("default", max_context=4096)`."""

    def __init__(
        self,
        model: str = "default",
        *,
        config: EngineConfig | None = None,
        cache: Path | None = None,
        progress: Progress | None = None,
        **settings: Any,
    ) -> None:
        self.config = configure(config, model=model, **settings)
        self._loaded = load(self.config, cache, progress)
        self._numbers = count()
        self._running: dict[int, _Running] = {}
        if self.spec.generates:
            self.sizing = size(self.config, self._loaded)
            self._engine = make_engine(self.config, self._loaded, self.sizing)

    @property
    def spec(self) -> ModelSpec:
        return self._loaded.spec

    @property
    def files(self) -> ModelFiles:
        if self._loaded.files is None:
            raise no_words(self.config.model.model)
        return self._loaded.files

    # Text

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        best_of: int | None = None,
        on_update: Callable[[Update], None] | None = None,
    ) -> list[Completion]:
        """Complete every prompt, all of them at once. `best_of` draws that many answers and keeps the likeliest n."""
        every = _listed(prompts)
        wishes = list(params) if isinstance(params, Sequence) else [params or SamplingParams()] * len(every)
        if len(wishes) != len(every):
            raise RequestError(
                f"there are {len(every)} prompts and {len(wishes)} sampling params; give one, or one each"
            )
        kept = [wish.n for wish in wishes]
        if best_of is not None:
            wishes = [replace(wish, n=max(best_of, wish.n), logprobs=wish.logprobs or 0) for wish in wishes]
        completions = [self._submit(prompt, wish) for prompt, wish in zip(every, wishes)]
        for update in self._run(completions):
            if on_update is not None:
                on_update(update)
        if best_of is not None:
            for completion, num_kept in zip(completions, kept):
                completion.keep_best(num_kept)
        return completions

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Update]:
        """Complete one prompt, yielding text as it comes. Leaving the loop cancels it."""
        yield from self._run([self._submit(prompt, params or SamplingParams())])

    def chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> Completion:
        """Answer a conversation."""
        completion = self._submit_chat(messages, params)
        for _ in self._run([completion]):
            pass
        return completion

    def stream_chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> Iterator[Update]:
        """Answer a conversation, yielding text as it comes. Leaving the loop cancels it."""
        yield from self._run([self._submit_chat(messages, params)])

    def render_chat(self, messages: Sequence[Message]) -> str:
        """The prompt a conversation becomes."""
        template = self.files.chat_template
        if template is None:
            raise ConfigError(f"{self.files.name} has no chat template: it completes text but was not made to chat")
        return template.render(messages, add_generation_prompt=True)

    # The loop

    def _submit_chat(self, messages: Sequence[Message], params: SamplingParams | None) -> Completion:
        text = self.render_chat(messages)
        ids = self.files.tokenizer.encode(text, special=False)
        return self._submit(ids, params or SamplingParams(), at_start=True)

    def _submit(self, prompt: Prompt, params: SamplingParams, *, at_start: bool = False) -> Completion:
        if not self.spec.generates:
            raise ConfigError(f"{self.config.model.model} makes vectors and generates no text; use LLM.embed")
        ids = tuple(self.files.tokenizer.encode(prompt, special=True) if isinstance(prompt, str) else prompt)
        if self._loaded.files is not None:
            ends = tuple(sorted(self.files.tokenizer.eos_ids - set(params.stop_token_ids)))
            params = replace(params, stop_token_ids=params.stop_token_ids + ends)
        completion = Completion(prompt, ids, [Choice() for _ in range(params.n)])
        request = Request(request_id=next(self._numbers), prompt=ids, params=params)
        self._engine.scheduler.limits.longest(request)
        rules = TextRules(stops=StopSet(params.stop), min_tokens=params.min_tokens, at_start=at_start)
        streams = [self._text_stream(rules) for _ in range(params.n)]
        self._running[request.request_id] = _Running(request, completion, streams)
        self._engine.submit(request)
        return completion

    def _text_stream(self, rules: TextRules) -> TextStream | None:
        if self._loaded.files is not None:
            return TextStream(self.files.tokenizer, rules)
        if rules.stops:
            raise no_words(self.config.model.model)
        return None

    def _run(self, completions: Sequence[Completion]) -> Iterator[Update]:
        """Step the engine until these are finished; others under way advance too."""
        try:
            while not all(completion.is_finished for completion in completions):
                for delta in self._engine.step():
                    update = self._take(delta)
                    if update is not None:
                        yield update
        finally:
            for number, running in list(self._running.items()):
                if any(running.completion is completion for completion in completions):
                    self._engine.cancel(number)
                    del self._running[number]

    def _take(self, delta: Delta) -> Update | None:
        running = self._running.get(delta.request_id)
        if running is None or running.completion.choices[delta.choice].finish:
            return None
        update = running.take(delta)
        choice = running.completion.choices[delta.choice]
        if choice.finish is not None and choice.finish.reason is FinishReason.ERROR:
            raise EngineError(choice.finish.message)
        if choice.finish is not None and delta.finish is None:
            self._engine.cancel(delta.request_id, delta.choice)
        return update


@dataclass(slots=True)
class _Running:
    """A request under way and the text its choices have become so far."""

    request: Request
    completion: Completion
    streams: list[TextStream | None]

    def take(self, delta: Delta) -> Update:
        choice, stream = self.completion.choices[delta.choice], self.streams[delta.choice]
        ended_by_token = delta.finish is not None and delta.finish.reason is FinishReason.STOP
        news = TextDelta("", "", None)
        num_before = stream.num_tokens if stream else 0
        if stream is not None:
            news = stream.feed(delta.token_ids, silent_last=ended_by_token)
        num_kept = stream.num_tokens - num_before if stream else len(delta.token_ids)
        choice.token_ids.extend(delta.token_ids[:num_kept])
        choice.logprobs.extend(delta.logprobs[:num_kept])
        self.completion.prompt_logprobs.extend(delta.prompt_logprobs)
        if delta.prefix is not None and delta.choice == 0:
            self.completion.prefix = delta.prefix
        if news.stop is not None:
            choice.finish, choice.stop = Finish(FinishReason.STOP), news.stop
        elif delta.finish is not None:
            choice.finish, choice.stop = delta.finish, delta.finish.stop_token_id
        if choice.finish is not None and stream is not None:
            rest = stream.finish()
            news = TextDelta(news.reasoning + rest.reasoning, news.content + rest.content, news.stop)
        choice.text += news.content
        choice.reasoning += news.reasoning
        return Update(self.completion, delta.choice, news.content, news.reasoning, num_kept)


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt, as text or token ids, or several."""
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]
