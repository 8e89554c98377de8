"""`penstock eval`: how good a model is, measured on a text or on questions."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.cli.evaluate.config import Config, engine_config
from penstock.cli.evaluate.drafts import measure_drafts_on
from penstock.cli.loading import adapter_at, open_llm
from penstock.console.files import read_text
from penstock.console.progress import ProgressBar
from penstock.console.show import print_json, print_table
from penstock.errors import ConfigError
from penstock.runtime.core.request import SamplingParams
from penstock.tools.evaluate.suites import SUITES, read_suite
from penstock.tools.evaluate.tasks import choose, is_exact, read_questions, report

if TYPE_CHECKING:
    from penstock.offline.llm import LLM

DEFAULT_CONTEXT = 1024
ANSWER_TOKENS = 256


def run(config: Config) -> int:
    if config.measure == "tasks":
        return _shown(config, _tasks(config))
    text = read_text(config.file)
    if config.measure == "drafts":
        return measure_drafts_on(config, text)
    return _shown(config, _perplexity(config, text))


def _shown(config: Config, result: dict[str, Any]) -> int:
    if config.json:
        print_json(result)
        return 0
    rows = []
    for name, value in result.items():
        if name in ("windows", "right"):
            continue
        if name == "strata":
            rows += [
                (f"{kind} {stratum}", f"{each['accuracy']:.3f} of {each['questions']} ({_cell(each['interval'])})")
                for kind, groups in value.items()
                for stratum, each in groups.items()
            ]
        else:
            rows.append((name.replace("_", " "), _cell(value)))
    print_table(("measure", "value"), rows)
    return 0


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {each:,}" for name, each in value.items())
    if isinstance(value, list):
        return " to ".join(f"{each:,}" for each in value)
    return f"{value:,}" if isinstance(value, int | float) else str(value)


@contextmanager
def open_measured(config: Config) -> Iterator["LLM"]:
    """As the model is served, or with activations in 8 bits."""
    if config.activations == "served":
        with open_llm(engine_config(config, config.model)) as llm:
            yield llm
        return
    if config.model.dtype not in ("auto", "float32"):
        raise ConfigError("--activations computes in float32; leave --dtype out")
    with open_llm(engine_config(config, replace(config.model, dtype="float32"))) as llm:
        from penstock.runtime.layers.decoder import Decoder
        from penstock.tools.evaluate.activations import round_inputs

        network = llm.loaded.network
        if not isinstance(network, Decoder):
            raise ConfigError("--activations takes a decoder on one device; leave --tensor and --pipeline out")
        round_inputs(network, config.activations)
        yield llm


def _perplexity(config: Config, text: str) -> dict[str, Any]:
    with open_measured(config) as llm:
        from penstock.offline.perplexity import longest_context, measure

        token_ids = llm.files.tokenizer.encode(text, special=False)[: config.tokens]
        context = config.context or min(DEFAULT_CONTEXT, longest_context(llm))
        stride = config.stride or max(context // 2, 1)
        start_s = time.monotonic()
        more: dict[str, Any] = {}
        with ProgressBar("tokens") as progress:
            on_progress = partial(progress, "measuring")
            if config.reference is None and config.save_logits is None:
                found = measure(llm, token_ids, context, stride, on_progress, adapter=adapter_at(config.adapter)[1])
            elif config.adapter is not None:
                raise ConfigError("--adapter is measured by itself; leave --reference and --save-logits out")
            else:
                from penstock.cli.evaluate.divergence import measure_divergence

                found, more = measure_divergence(llm, token_ids, context, stride, on_progress, config)
        seconds = time.monotonic() - start_s
        return {
            "model": llm.files.name,
            "file": str(config.file),
            **({} if config.adapter is None else {"adapter": config.adapter}),
            "perplexity": round(found.value, 6),
            **more,
            "tokens": found.num_tokens,
            "scored_tokens": found.num_scored,
            "context": context,
            "stride": stride,
            "seconds": round(seconds, 3),
            "tokens_per_s": round(found.num_scored / seconds, 1),
            "windows": [[count, round(logprob, 6)] for count, logprob in found.windows],
        }


def _tasks(config: Config) -> dict[str, Any]:
    from penstock.runtime.formats.texts import fetch_text

    name = str(config.file)
    if name in SUITES and not config.file.exists():
        with ProgressBar() as fetched:
            questions = read_suite(name, fetch_text(name, fetched))[: config.tokens]
    else:
        questions = read_questions(config.file, config.tokens)
    with open_measured(config) as llm, ProgressBar("questions") as progress:
        right = []
        for number, question in enumerate(questions):
            progress("asking", number, len(questions))
            right.append(_is_right(llm, question, adapter_at(config.adapter)[1]))
        adapter = {} if config.adapter is None else {"adapter": config.adapter}
        return {"model": llm.files.name, "file": name, **adapter, **report(questions, right)}


def _is_right(llm: "LLM", question: Any, adapter: str) -> bool:
    if not question.choices:
        params = SamplingParams(temperature=0.0, max_tokens=ANSWER_TOKENS)
        (done,) = llm.generate([question.prompt], params, adapter=adapter)
        return is_exact(done.choices[0].text.partition("\nQuestion:")[0], question.answer)
    tokenizer, most = llm.files.tokenizer, llm.sizing.max_context - 1
    shared = len(tokenizer.encode(question.prompt, special=True))
    prompts = [tokenizer.encode(question.prompt + choice, special=True)[-most:] for choice in question.choices]
    scores = [
        sum(entry.logprob for entry in scored[max(min(shared, len(ids) - 1) - 1, 0) :])
        for ids, scored in zip(prompts, llm.score(prompts, adapter=adapter))
    ]
    return bool(choose(scores, question.choices) == question.answer)
