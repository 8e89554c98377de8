"""The stream law: text = cut_at_stop(decode(tokens)), split by its style, however the tokens come."""

import random
import time
from typing import Any

import pytest

from penstock.runtime.text.stream.stop import StopSet, cut_at_stop
from penstock.runtime.text.stream.stream import TextRules, TextStream
from penstock.runtime.text.stream.styles import STYLES
from penstock.runtime.text.tokenizer.tokenizer import Detokenizer, Tokenizer
from tests.real import DEFAULT
from tests.text.sources import random_split, real_tokenizer, small_tokenizers

SENTENCES = (
    "<think>\nthe 你 é</think>\n\nthe answer",
    "the the\n\nab 👍 the",
    "no thoughts, the end",
    "<think>the never closed",
)


def streamed(tokenizer: Tokenizer, rules: TextRules, runs: list[list[int]]) -> tuple[TextStream, str, str]:
    stream = TextStream(tokenizer, rules)
    deltas = [*(stream.feed(run) for run in runs), stream.finish()]
    return stream, "".join(delta.reasoning for delta in deltas), "".join(delta.content for delta in deltas)


def check_law(tokenizer: Tokenizer, ids: list[int], rng: random.Random) -> None:
    stops = rng.sample(["the", "\n", "</th", "a", "你 é", "\ufffd", "answer", "ink"], rng.randrange(3))
    style = rng.choice((None, STYLES["think"]))
    rules = TextRules(
        stops=StopSet(stops),
        style=style,
        is_open=rng.random() < 0.3,
        at_start=rng.random() < 0.5,
        skip_special=rng.random() < 0.5,
    )
    whole = tokenizer.decode(ids, skip_special=rules.skip_special, at_start=rules.at_start)
    text, stop = cut_at_stop(whole, stops)
    expected = ("", text) if style is None else style.split(text, is_open=rules.is_open)
    stream, reasoning, content = streamed(tokenizer, rules, random_split(rng, ids))
    assert stream.stop == stop
    assert (reasoning, content) == tuple(expected)


def test_streamed_text_is_unstreamed_text() -> None:
    rng = random.Random(0)
    family = [small_tokenizers()[name] for name in ("byte-level", "sentence-piece", "sentence-piece-prefix")]
    for _ in range(1500):
        tokenizer = rng.choice(family)
        ids = tokenizer.encode(rng.choice(SENTENCES), special=rng.random() < 0.5)
        if rng.random() < 0.5:
            ids = [rng.choice((token_id, rng.randrange(tokenizer.vocab_size))) for token_id in ids]
        check_law(tokenizer, ids, rng)


def test_tokens_after_the_stop_do_not_count() -> None:
    """However many come at once, the count ends with the token that completed the stop string."""
    tokenizer = small_tokenizers()["byte-level"]
    ids = tokenizer.encode("ab the ab the", special=False)
    counts = set()
    for size in (1, 2, 3, len(ids)):
        stream, _, content = streamed(
            tokenizer, TextRules(stops=StopSet(["the"])), [ids[i : i + size] for i in range(0, len(ids), size)]
        )
        counts.add(stream.num_tokens)
        assert content == "ab "
    assert counts == {next(n for n in range(len(ids)) if "the" in tokenizer.decode(ids[:n]))}


def test_stops_are_ignored_until_enough_tokens() -> None:
    tokenizer = small_tokenizers()["byte-level"]
    ids = tokenizer.encode("abababab", special=False)
    for min_tokens in range(len(ids)):
        stream, _, content = streamed(tokenizer, TextRules(stops=StopSet(["ab"]), min_tokens=min_tokens), [ids])
        assert content == "ab" * min_tokens
        assert stream.num_tokens == min_tokens + 1


@pytest.mark.parametrize("stops", [(), ("zzz",)])
def test_a_silent_last_token_counts_but_does_not_show(stops: tuple[str, ...]) -> None:
    tokenizer = small_tokenizers()["byte-level"]
    ids = tokenizer.encode("ab the", special=False)
    stream = TextStream(tokenizer, TextRules(stops=StopSet(stops)))
    shown = stream.feed(ids, silent_last=True).content + stream.finish().content
    assert shown == tokenizer.decode(ids[:-1])
    assert stream.num_tokens == len(ids)


def test_the_stop_string_may_be_kept() -> None:
    tokenizer = small_tokenizers()["byte-level"]
    ids = tokenizer.encode("ab the ab", special=False)
    _, _, content = streamed(tokenizer, TextRules(stops=StopSet(["the"]), include_stop=True), [[i] for i in ids])
    assert content == "ab the"


def test_markers_that_are_special_tokens_still_split() -> None:
    """Harmony's markers are control tokens: hidden from the text, seen by the split."""
    from tests.text.sources import byte_level_metadata

    metadata: dict[str, Any] = dict(byte_level_metadata())
    markers = list(STYLES["harmony"].markers)
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], *markers]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], *[3] * len(markers)]
    tokenizer = Tokenizer.from_gguf(metadata)
    text = "<|channel|>analysis<|message|>ab<|end|><|start|>assistant<|channel|>final<|message|>the<|return|>"
    ids = tokenizer.encode(text, special=False)
    stream, reasoning, content = streamed(tokenizer, TextRules(style=STYLES["harmony"]), [[i] for i in ids])
    assert (reasoning, content) == ("ab", "the")
    assert 0 < stream.num_reasoning_tokens < stream.num_tokens == len(ids)


def test_replayed_tokens_continue_the_text() -> None:
    """A stream that was moved is fed its tokens again; what follows is what would have followed."""
    tokenizer = small_tokenizers()["byte-level"]
    rules = TextRules(stops=StopSet(["the end"]), style=STYLES["think"])
    ids = tokenizer.encode("<think>你</think> the en 👍 the end", special=False)
    for cut in range(len(ids)):
        first = TextStream(tokenizer, rules)
        before = [first.feed([token_id]) for token_id in ids[:cut]]
        second = TextStream(tokenizer, rules)
        second.feed(ids[:cut])
        after = [*(second.feed([token_id]) for token_id in ids[cut:]), second.finish()]
        content = "".join(delta.content for delta in (*before, *after))
        assert (content, second.stop) == ("the en 👍 ", "the end")


def test_a_batch_of_256_takes_well_under_a_millisecond() -> None:
    tokenizer = real_tokenizer(DEFAULT)
    ids = tokenizer.encode("The quick brown fox jumps over the lazy dog, again and again. " * 8, special=False)
    detokenizers = [Detokenizer(tokenizer) for _ in range(256)]
    best = 9.9
    for step in range(40):
        began = time.thread_time()
        for index, detokenizer in enumerate(detokenizers):
            detokenizer.feed((ids[(step + index) % len(ids)],))
        best = min(best, time.thread_time() - began)
    assert best < 0.001
