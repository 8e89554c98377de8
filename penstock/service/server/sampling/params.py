"""Sampling parameters of a model's engine, checked against its vocabulary. What the client left open gets its default here."""

from collections.abc import Sequence
from typing import Any

from penstock.runtime.core.request import MAX_TOKEN_LIST, SamplingParams
from penstock.runtime.text.tokenizer.banned import banned_sequences
from penstock.service.server.generation import SamplingOptions
from penstock.service.server.http.faults import invalid
from penstock.service.server.http.relay import random_seed
from penstock.service.server.served import ServedModel

MAX_ID_DIGITS = 12
"""Of a token id; Python itself refuses to read thousands of digits."""


def sampling_params(model: ServedModel, asked: SamplingOptions) -> SamplingParams:
    vocab_size, defaults = model.vocab_size, model.text.defaults
    ends = () if asked.ignores_eos else model.tokenizer.eos_ids
    stop_token_ids = {*ends, *_token_set(asked.stop_token_ids, vocab_size, "stop_token_ids")}
    seed = random_seed() if asked.seed is None else asked.seed
    return SamplingParams(
        temperature=_or(asked.temperature, defaults.temperature),
        top_k=max(_or(asked.top_k, defaults.top_k), 0),
        top_p=_or(asked.top_p, defaults.top_p),
        min_p=_or(asked.min_p, defaults.min_p),
        presence_penalty=_or(asked.presence_penalty, 0.0),
        frequency_penalty=_or(asked.frequency_penalty, 0.0),
        repetition_penalty=_or(asked.repetition_penalty, defaults.repetition_penalty),
        logit_bias=_logit_bias(asked, vocab_size),
        allowed_token_ids=_token_set(asked.allowed_token_ids, vocab_size, "allowed_token_ids"),
        seed=seed if model.watermark is None else model.watermark.seed(seed),
        max_tokens=asked.max_tokens,
        min_tokens=_or(asked.min_tokens, 0),
        stop=asked.stops,
        stop_token_ids=tuple(stop_token_ids),
        logprobs=0 if asked.best_of and asked.num_logprobs is None else asked.num_logprobs,
        prompt_logprobs=asked.num_prompt_logprobs,
        banned_sequences=banned_sequences(model.tokenizer, asked.bad_words),
        n=asked.best_of or asked.n or 1,
    )


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _logit_bias(asked: SamplingOptions, vocab_size: int) -> tuple[tuple[int, float], ...]:
    pairs = []
    if len(asked.logit_bias or ()) > MAX_TOKEN_LIST:
        raise invalid(f"logit_bias has more than {MAX_TOKEN_LIST:,} entries; send fewer", "logit_bias")
    for key, bias in (asked.logit_bias or {}).items():
        if not key.isdecimal() or not key.isascii() or len(key) > MAX_ID_DIGITS or int(key) >= vocab_size:
            raise invalid(
                f"logit_bias has the key {key[:40]!r}; keys are token ids, 0 to {vocab_size - 1:,}", "logit_bias"
            )
        pairs.append((int(key), bias))
    return tuple(pairs)


def _token_set(given: Sequence[int] | None, vocab_size: int, param: str) -> tuple[int, ...]:
    check_ids(given or (), vocab_size, param)
    return tuple(given or ())


def check_ids(token_ids: Sequence[int], vocab_size: int, param: str) -> None:
    if token_ids and max(token_ids) >= vocab_size:
        raise invalid(f"{param} has the token id {max(token_ids)}; ids are below {vocab_size}", param)
