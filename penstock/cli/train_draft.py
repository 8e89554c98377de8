"""`penstock train-draft`: a drafter for a model, trained on the model's own answers."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from penstock.cli.loading import open_llm
from penstock.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig, SpeculationConfig
from penstock.console.files import read_text
from penstock.console.progress import ProgressBar
from penstock.console.show import print_json, print_table
from penstock.errors import ConfigError
from penstock.fields import Checked, leaf, setting
from penstock.runtime.core.request import SamplingParams

if TYPE_CHECKING:
    from penstock.offline.llm import LLM
    from penstock.runtime.train.examples import Example
    from penstock.runtime.train.record import Transcript

LEAST_PROMPTS = 10
ASKED = 400
QUESTION_TOKENS = 48
PLACE = "the-user-speaks-here"
DEPTH = 3


@dataclass(frozen=True, slots=True)
class Config(Checked):
    """Train a drafter for a model on the model's own answers, and tell how often its guesses come true.

    Paragraphs of the text are prompts. The model answers them; its hidden states are recorded; heads learn to predict them.
    One answer in ten is held out for the figures. Serve the result with --speculate KIND:DIR.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    text: tuple[Path, ...] = ()
    """Files of prompts, paragraph by paragraph: ask as your users do"""
    asked: int | None = setting(None)
    """Prompts that the model is to make up beside the text's (default: none with --text, else 400)"""
    out: Path | None = None
    """Folder to write, new or empty"""
    kind: Literal["medusa", "eagle"] = "eagle"
    """What to train: an EAGLE head or Medusa heads"""
    minutes: float = leaf(10.0, above=0)
    """Time to train for, beside the time that answering takes"""
    answer_tokens: int = setting(160, 1)
    """Longest answer"""
    temperature: float = 0.0
    """Of the answers; 0 takes the likeliest tokens"""
    draft_vocabulary: int = setting(4096, 1)
    """Tokens that heads choose among: those the answers are mostly made of"""
    examples: Path | None = setting(None)
    """File to keep the answers in, or that an earlier run kept them in: then nothing is answered anew"""
    json: bool = False
    """Print JSON for machines"""
    scheduler: SchedulerConfig = field(default_factory=lambda: SchedulerConfig(max_sequences=32))


def run(config: Config) -> int:
    if config.out is None:
        raise ConfigError("--out names no folder; say where the drafter is to be written")
    prompts = read_prompts(config.text)
    num_asked = (0 if config.text else ASKED) if config.asked is None else config.asked
    is_kept = config.examples is not None and config.examples.exists()
    if len(prompts) + num_asked < LEAST_PROMPTS and not is_kept:
        raise ConfigError(f"the text has {len(prompts)} paragraphs; give at least {LEAST_PROMPTS}, or asked={ASKED}")
    from penstock.offline.training import train_heads
    from penstock.runtime.train.folder import make_folder

    make_folder(config.out)
    cache = CacheConfig(prefix_caching=False)
    plain = SpeculationConfig("off")
    with open_llm(EngineConfig(config.model, cache, config.scheduler, speculation=plain)) as llm:
        start_s = time.monotonic()
        examples = _examples(llm, prompts, num_asked, config)
        answered_s = time.monotonic() - start_s
        with ProgressBar("seconds") as progress:
            report = train_heads(
                llm, examples, config.out, config.kind, config.minutes * 60, config.draft_vocabulary, progress
            )
    report |= {
        "answers": len(examples),
        "answer_tokens": sum(len(example.tokens) - example.num_prompt for example in examples),
        "answering_s": round(answered_s, 1),
    }
    if config.json:
        print_json(report)
        return 0
    print_table(("", ""), [(name.replace("_", " "), _shown(value)) for name, value in report.items()])
    print(f"serve it with --speculate {config.kind}:{config.out}")
    return 0


def read_prompts(files: Sequence[Path]) -> list[str]:
    """Paragraphs, in their order, each once."""
    prompts: dict[str, None] = {}
    for file in files:
        parts = (part.strip() for part in read_text(file).split("\n\n"))
        prompts |= dict.fromkeys(part for part in parts if part)
    return list(prompts)


def ask(llm: "LLM", count: int) -> list[str]:
    """Questions of the model's own: where its template has the user speak, it is let speak."""
    if llm.files.chat_template is None:
        raise ConfigError(f"{llm.files.name} was not made to chat and asks nothing; give prompts with --text")
    before, _, _ = llm.render_chat([{"role": "user", "content": PLACE}]).partition(PLACE)
    with ProgressBar("questions") as progress:
        params = [
            SamplingParams(temperature=1.0, top_p=0.9, seed=seed, max_tokens=QUESTION_TOKENS) for seed in range(count)
        ]
        answers = llm.generate([before] * count, params)
        progress("asking", count, count)
    said = (done.choices[0].text.strip() for done in answers)
    return list(dict.fromkeys(text for text in said if text))


def answer(llm: "LLM", prompts: Sequence[str], config: Config) -> "list[Transcript]":
    """The model's own answers, as a chat where it was made for that; many at once."""
    params = SamplingParams(temperature=config.temperature, seed=1, max_tokens=config.answer_tokens)
    tokens = [llm.chat_tokens(prompt) for prompt in prompts]
    num_done = 0
    with ProgressBar("answers") as progress:

        def report(update: Any) -> None:
            nonlocal num_done
            num_done += update.completion.is_finished
            progress("answering", num_done, len(prompts))

        completions = llm.generate(tokens, params, on_update=report)
    found = [(prompt, tuple(done.choices[0].token_ids)) for prompt, done in zip(tokens, completions)]
    return [(prompt, said) for prompt, said in found if len(said) > DEPTH]


def _examples(llm: "LLM", prompts: list[str], num_asked: int, config: Config) -> "list[Example]":
    """Answers with the states they were given in: from the file of an earlier run, or new ones, kept there if one is named."""
    from penstock.offline.training import listen
    from penstock.runtime.train.examples import read_examples, write_examples

    if config.examples is not None and config.examples.exists():
        return read_examples(config.examples, llm.files.fingerprint, llm.spec.hidden_size)
    prompts = prompts + (ask(llm, num_asked) if num_asked else [])
    recorder = listen(llm)
    examples = recorder.examples(answer(llm, prompts, config))
    if config.examples is not None and examples:
        write_examples(config.examples, examples, llm.files.fingerprint)
    return examples


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(f"{one:.3f}" if isinstance(one, float) else str(one) for one in value)
    return f"{value:,}" if isinstance(value, int | float) else str(value)
