"""A model in this process: prompts in, text out. No server, no other process, no network once the model is fetched."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.assembly.engine import LoadedModel, Progress, load, make_engine, size
from penstock.config import EngineConfig, configure
from penstock.errors import ConfigError, RequestError
from penstock.offline.completion import Choice, Completion, News, Prompt, Running, Update
from penstock.runtime.core.batch import Logprob
from penstock.runtime.core.request import Grammar, Request, SamplingParams, mix_of
from penstock.runtime.engine.engine import Engine
from penstock.runtime.execution.eager.encoder import TextEncoder
from penstock.runtime.files import ModelFiles, no_words
from penstock.runtime.layers.encoder import Encoder
from penstock.runtime.models.spec import ModelSpec
from penstock.runtime.sizing import OFFLINE_STEP_S, Sizing
from penstock.runtime.text.beam import Beam, BeamRules, Ranked, TokenIds, beam_search
from penstock.runtime.text.stream.stop import StopSet
from penstock.runtime.text.stream.stream import TextRules, TextStream
from penstock.runtime.text.stream.styles import style_of_template
from penstock.runtime.text.template.shield import PromptTokens, tokenize_chat
from penstock.runtime.text.tools.speech import ToolSpeech, tool_of

__all__ = ["LLM", "Beam", "Choice", "Completion", "Prompt", "Update"]

Message = Mapping[str, Any]
Vectors = npt.NDArray[np.float32]

CONTINUING = TextRules(at_start=False)
"""An answer goes on where the prompt ends; in a chat it begins a text of its own."""


class LLM:
    """Settings are those of `EngineConfig`, by name: `LLM("default", max_context=4096)`.

    Holds weights and cache until `close`, or the end of a `with`. Not for several threads at once; several streams in one
    thread may be read in turns.
    """

    def __init__(
        self,
        model: str = "default",
        *,
        config: EngineConfig | None = None,
        cache: Path | None = None,
        progress: Progress | None = None,
        adapters: Mapping[str, str | Path] | None = None,
        **settings: Any,
    ) -> None:
        """`adapters` are paths by the names that `generate` and the others take: PEFT directories or GGUF adapters."""
        if adapters is not None:
            settings["adapters"] = tuple(f"{name}={path}" for name, path in adapters.items())
        config = configure(config, model=model, **settings)
        self._start(load(config, cache, progress), config)

    @classmethod
    def over(cls, loaded: LoadedModel, config: EngineConfig) -> "LLM":
        """An engine of its own over weights that are loaded already."""
        llm = cls.__new__(cls)
        llm._start(loaded, config)
        return llm

    def _start(self, loaded: LoadedModel, config: EngineConfig) -> None:
        self.config = config
        self._adapters = config.adapter.by_name
        self._model: LoadedModel | None = loaded
        self._numbers = count()
        self._running: dict[int, Running] = {}
        self._waiting: deque[Running] = deque()
        """Requests that the engine has no room to queue yet."""
        self._engine: Engine | None = None
        self._sizing: Sizing | None = None
        self._encoder: TextEncoder | None = None
        if isinstance(loaded.network, Encoder):
            self._encoder = TextEncoder(loaded.network)
            return
        try:
            if loaded.files is not None:
                _ = loaded.files.tokenizer  # all ask for it; what making it leaves behind is given back with the rest
            self._sizing = size(config, loaded, OFFLINE_STEP_S)
            self._engine = make_engine(config, loaded, self._sizing)
        except BaseException:
            self.close()  # the other ranks would wait for ever
            raise

    def close(self) -> None:
        """Give weights and cache back, and end what other ranks there are. What is under way is dropped."""
        if self._engine is not None:
            self._engine.close()
        if self._model is not None and self._model.group is not None:
            self._model.group.close()
        self._model = self._engine = self._encoder = None
        self._running.clear()
        self._waiting.clear()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def loaded(self) -> LoadedModel:
        if self._model is None:
            raise ConfigError("this LLM is closed; make a new one")
        return self._model

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise ConfigError(f"{self._name} makes vectors and generates no text; use LLM.embed")
        return self._engine

    @property
    def sizing(self) -> Sizing:
        """What was found at start. A model that makes vectors has no cache to size."""
        if self._sizing is None:
            raise ConfigError(f"{self._name} makes vectors and keeps no cache")
        return self._sizing

    @property
    def spec(self) -> ModelSpec:
        return self.loaded.spec

    @property
    def files(self) -> ModelFiles:
        if self.loaded.files is None:
            raise no_words(self.config.model.model)
        return self.loaded.files

    @property
    def _name(self) -> str:
        return self.loaded.files.name if self.loaded.files else self.config.model.model

    # Text

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str | Sequence[str] = "",
        best_of: int | None = None,
        on_update: Callable[[Update], None] | None = None,
    ) -> list[Completion]:
        """Complete every prompt, all of them at once. `best_of` draws that many answers and keeps the likeliest n; `adapter`
        names one for all prompts, or one each.

        All prompts are checked before any is computed. One that fails ends alone, and its error is raised when the others
        have ended.
        """
        every = _listed(prompts)
        samplings = params if isinstance(params, Sequence) else [params or SamplingParams()] * len(every)
        adapters = [adapter] * len(every) if isinstance(adapter, str) else adapter
        for given, what in ((samplings, "sampling params"), (adapters, "adapters")):
            if len(given) != len(every):
                raise RequestError(f"there are {len(every)} prompts and {len(given)} {what}; give one, or one each")
        kept = [each.n for each in samplings]
        if best_of is not None:
            samplings = [replace(each, n=max(best_of, each.n), logprobs=each.logprobs or 0) for each in samplings]
        runs = [self._prepare(*each[:2], adapter=each[2]) for each in zip(every, samplings, adapters)]
        for index, run in enumerate(runs):
            run.completion.index = index
        for update in self._run(runs):
            if on_update is not None:
                on_update(update)
        completions = [run.completion for run in runs]
        if best_of is not None:
            for completion, num_kept in zip(completions, kept):
                likeliest = sorted(completion.choices, key=lambda choice: -choice.mean_logprob)
                completion.choices = likeliest[:num_kept]
        return completions

    def stream(self, prompt: Prompt, params: SamplingParams | None = None, *, adapter: str = "") -> Iterator[Update]:
        """Complete one prompt, yielding text as it comes. Leaving the loop cancels it."""
        yield from self._run([self._prepare(prompt, params or SamplingParams(), adapter=adapter)])

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Message] = (),
        requires_call: bool = False,
        adapter: str = "",
    ) -> Completion:
        """Answer a conversation. With tools, described as OpenAI's API does, the answer may call them, or has to."""
        *_, last = self.stream_chat(messages, params, tools=tools, requires_call=requires_call, adapter=adapter)
        return last.completion

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Message] = (),
        requires_call: bool = False,
        adapter: str = "",
    ) -> Iterator[Update]:
        """Answer a conversation, yielding text as it comes. Leaving the loop cancels it."""
        params = params or SamplingParams()
        prompt = self._tokenize_chat(messages, tools)
        template = self.files.chat_template
        style = None if template is None else style_of_template(template.source)
        rules = TextRules(style=style, is_open=style is not None and style.is_open(prompt.text))
        known = [tool_of(tool) for tool in tools]
        content = None if params.grammar is None else (params.grammar.kind, params.grammar.source)
        held = self._speech.held(
            None if tools else content, known, style, is_required=requires_call, is_open=rules.is_open
        )
        if held is not None:
            params = replace(params, grammar=Grammar(*held))
        if tools:
            rules = rules._replace(make_parser=self._speech.parser(known), markers=self._speech.visible)
        yield from self._run([self._prepare(prompt.token_ids, params, rules, adapter)])

    def render_chat(self, messages: Sequence[Message]) -> str:
        """The prompt a conversation becomes."""
        return self._tokenize_chat(messages).text

    def chat_tokens(self, prompt: str) -> tuple[int, ...]:
        """A question as the model reads it: a conversation's first message, or the text alone where there is no template."""
        if self.files.chat_template is None:
            return self._encoded(prompt)
        return tuple(self._tokenize_chat([{"role": "user", "content": prompt}]).token_ids)

    @cached_property
    def _speech(self) -> ToolSpeech:
        return ToolSpeech(self.files.tokenizer, self.files.chat_template)

    def _tokenize_chat(self, messages: Sequence[Message], tools: Sequence[Message] = ()) -> PromptTokens:
        template = self.files.chat_template
        if template is None:
            raise ConfigError(f"{self.files.name} has no chat template: it completes text but was not made to chat")
        return tokenize_chat(template, self.files.tokenizer, messages, tools=tools or None, add_generation_prompt=True)

    def beam_search(
        self, prompt: Prompt, width: int, max_tokens: int, length_penalty: float = 1.0, *, adapter: str = ""
    ) -> list[Beam]:
        """The likeliest answers, best first. The prefix cache holds what beams share."""
        ids = self._encoded(prompt)
        ends = self.files.tokenizer.eos_ids if self.loaded.files else frozenset()
        rules = BeamRules(width, max_tokens, length_penalty, ends)
        self.engine.scheduler.limits.longest(
            Request(request_id=0, prompt=ids, params=SamplingParams(max_tokens=max_tokens))
        )

        def likeliest(answers: list[TokenIds], num_asked: int) -> list[Ranked]:
            params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=num_asked)
            completions = self.generate([ids + answer for answer in answers], params, adapter=adapter)
            return [completion.choices[0].logprobs[0].top for completion in completions]

        beams = beam_search(likeliest, rules)
        return [replace(beam, text=self._decoded(beam)) for beam in beams]

    def score(self, prompts: Prompt | Sequence[Prompt], *, adapter: str = "") -> list[list[Logprob]]:
        """How likely each prompt's own tokens are, each given those before it; the first is left out."""
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
        return [completion.prompt_logprobs for completion in self.generate(prompts, params, adapter=adapter)]

    # Vectors

    def embed(self, texts: Prompt | Sequence[Prompt], *, dimensions: int | None = None) -> Vectors:
        """One vector of length 1 for each text, [texts, dimensions]: all of them, or the first so many made long again."""
        if self._encoder is None:
            raise ConfigError(f"{self._name} generates text and makes no vectors; name an embedding model")
        width = self.spec.hidden_size
        if dimensions is not None and not 1 <= dimensions <= width:
            raise RequestError(f"dimensions is {dimensions}; this model has 1 to {width}", param="dimensions")
        vectors = self._encoder.encode([self._encoded(text) for text in _listed(texts)])
        if dimensions is None:
            return vectors
        kept = vectors[:, :dimensions]
        lengths = np.linalg.norm(kept, axis=1, keepdims=True)
        shortened: Vectors = kept / np.maximum(lengths, np.finfo(np.float32).tiny)
        return shortened

    # The loop

    def _encoded(self, prompt: Prompt) -> tuple[int, ...]:
        return tuple(self.files.tokenizer.encode(prompt, special=True) if isinstance(prompt, str) else prompt)

    def _decoded(self, beam: Beam) -> str:
        if self.loaded.files is None:
            return ""
        return self.files.tokenizer.decode(beam.token_ids[: len(beam.token_ids) - beam.is_ended], at_start=False)

    def _prepare(
        self, prompt: Prompt, params: SamplingParams, rules: TextRules = CONTINUING, adapter: str = ""
    ) -> Running:
        """A request that could be served, with the streams its text will come through."""
        limits = self.engine.scheduler.limits
        ids = self._encoded(prompt)
        if self.loaded.files is not None:
            ends = tuple(sorted(self.files.tokenizer.eos_ids - set(params.stop_token_ids)))
            params = replace(params, stop_token_ids=params.stop_token_ids + ends)
        completion = Completion(prompt, ids, [Choice() for _ in range(params.n)])
        path = self._adapters.get(adapter) or (mix_of(adapter, self._adapters) if adapter else "")
        if path is None:
            known = ", ".join(self._adapters) or "none; name some with LLM(adapters=...)"
            raise RequestError(f"the adapter {adapter[:80]!r} is not known; there are {known}", param="adapter")
        request = Request(request_id=next(self._numbers), prompt=ids, params=params, adapter=path)
        limits.longest(request)
        rules = rules._replace(stops=StopSet(params.stop) if params.stop else None, min_tokens=params.min_tokens)
        return Running(request, completion, [self._text_stream(rules) for _ in range(params.n)])

    def _text_stream(self, rules: TextRules) -> TextStream | None:
        if self.loaded.files is not None:
            return TextStream(self.files.tokenizer, rules)
        if rules.stops:
            raise no_words(self.config.model.model)
        return None

    def _run(self, runs: Sequence[Running]) -> Iterator[Update]:
        """Step the engine until these are finished; others under way advance too, and their news waits for them."""
        news: deque[News] = deque()
        for run in runs:
            run.news = news
        left = {run.request.request_id: run for run in runs}
        self._running |= left
        self._waiting.extend(runs)
        try:
            while left:
                if not news:
                    self._step()
                while news:
                    run, update = news.popleft()
                    if run.completion.is_finished:
                        left.pop(run.request.request_id, None)
                    yield update
        finally:
            for number in left:
                if self._running.pop(number, None) is not None:
                    self.engine.cancel(number)
        for run in runs:
            if run.fault is not None:
                raise run.fault

    def _step(self) -> None:
        engine = self.engine
        self._hand_over(engine)
        for delta in engine.step():
            run = self._running.get(delta.request_id)
            if run is None:
                continue
            if run.take(delta):
                engine.cancel(delta.request_id, delta.choice)
            if run.completion.is_finished:
                del self._running[delta.request_id]

    def _hand_over(self, engine: Engine) -> None:
        """Give the engine what it has room to queue. What is too much for an empty queue is for the engine to refuse."""
        limits, load = engine.scheduler.limits, engine.scheduler.load
        num_queued, num_tokens = load.num_waiting, load.num_waiting_tokens
        while self._waiting:
            request = self._waiting[0].request
            num_queued += request.params.n
            num_tokens += len(request.prompt)
            has_room = num_queued <= limits.max_waiting and num_tokens <= limits.max_waiting_tokens
            if not has_room and num_queued > request.params.n:
                return
            self._waiting.popleft()
            if request.request_id in self._running:
                engine.submit(request)


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt, as text or token ids, or several."""
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]
