"""Perplexity with predictions kept or compared: two models side by side, window by window, or one beside a file."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.evaluate.config import Config, engine_config
from penstock.cli.loading import open_llm
from penstock.errors import ConfigError
from penstock.offline.perplexity import Perplexity, check_windows, opening, windows
from penstock.runtime.core.request import SamplingParams
from penstock.tools.evaluate.divergence import Divergence, KeptRows, LogitsKeeper, SavedLogits
from penstock.tools.evaluate.rows import RowSink, ScoreRows, of_tokens

if TYPE_CHECKING:
    from penstock.offline.llm import LLM

ONE = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
"""Asking for those of the prompt has all of it computed, cached or not."""


class RowReader:
    """One model's rows of log probabilities, for the tokens of a text that a window scores."""

    def __init__(self, llm: "LLM") -> None:
        runner: Any = llm.engine.runner
        if not hasattr(runner, "score"):
            raise ConfigError("predictions are compared on one device; leave --tensor and --pipeline out")
        self._llm = llm
        self._sink = RowSink(runner.score, llm.spec.vocab_size)
        self._runner = runner
        self._opening = opening(llm)

    def window(self, token_ids: Sequence[int], num_seen: int) -> tuple[list[int], ScoreRows, ScoreRows]:
        """Scored tokens, the rows that predicted them, and their own log probabilities."""
        self._runner.states = self._sink
        self._llm.generate([[*self._opening, *token_ids]], ONE)
        rows = self._sink.take()
        first = max(num_seen, 0 if self._opening else 1)
        scored = list(token_ids[first:])
        predicted = rows[len(self._opening) + first - 1 : len(self._opening) + len(token_ids) - 1]
        return scored, predicted, of_tokens(predicted, scored)


def measure_divergence(
    llm: "LLM",
    token_ids: Sequence[int],
    context: int,
    stride: int,
    on_progress: Callable[[int, int], None],
    config: Config,
) -> tuple[Perplexity, dict[str, Any]]:
    check_windows(llm, token_ids, context, stride)
    with ExitStack() as stack:
        saved, other = _reference(config, stack, llm)
        reader, found, keeper = RowReader(llm), Divergence(), LogitsKeeper()
        sums: list[tuple[int, float]] = []
        for window in windows(len(token_ids), context, stride):
            ids, num_seen = token_ids[window.start : window.end], window.scored - window.start
            scored, rows, own = reader.window(ids, num_seen)
            sums.append((len(scored), float(own.double().sum())))
            kept: KeptRows | ScoreRows | None = None
            if saved is not None:
                kept, logprob = saved.window(scored)
            elif other is not None:
                _, kept, theirs = other.window(ids, num_seen)
                logprob = float(theirs.double().sum())
            if kept is not None:
                found.add(kept, rows, logprob, sums[-1][1])
            if config.save_logits is not None:
                keeper.add(scored, rows, own)
            on_progress(window.end, len(token_ids))
    if config.save_logits is not None:
        keeper.write(config.save_logits)
    more = {"reference": config.reference, **found.report()} if found.counts else {}
    total = sum(logprob for _, logprob in sums)
    return Perplexity(len(token_ids), sum(count for count, _ in sums), total, tuple(sums)), more


def _reference(config: Config, stack: ExitStack, llm: "LLM") -> "tuple[SavedLogits | None, RowReader | None]":
    if config.reference is None:
        return None, None
    path = Path(config.reference)
    if path.is_file() and path.suffix != ".gguf":
        return SavedLogits(path), None
    other = stack.enter_context(open_llm(engine_config(config, replace(config.model, model=config.reference))))
    if other.spec.vocab_size != llm.spec.vocab_size:
        raise ConfigError(
            f"--reference has a vocabulary of {other.spec.vocab_size:,} and the model one of {llm.spec.vocab_size:,}; "
            "predictions can be compared over one vocabulary only"
        )
    return None, RowReader(other)
