"""Every token of a text is scored exactly once, with as much before it as a window holds."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import LLM
from penstock.errors import ConfigError, RequestError
from penstock.offline.perplexity import Perplexity, measure, windows
from tests.offline import tiny_llm, write_chat_model


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(str(write_chat_model(tmp_path_factory.mktemp("model") / "tiny.gguf")))


@given(st.integers(1, 300), st.integers(2, 64), st.data())
def test_windows_score_every_token_once(num_tokens: int, context: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, context))
    every = list(windows(num_tokens, context, stride))
    scored = [place for window in every for place in range(window.scored, window.end)]
    assert scored == list(range(num_tokens))
    for window in every:
        assert 0 <= window.start <= window.scored < window.end
        assert window.end - window.start <= context
    for window in every[1:]:
        assert window.end - window.start == context
        assert window.end - window.scored <= stride


def test_perplexity_is_the_exponent_of_the_mean() -> None:
    assert Perplexity(5, 4, -4 * math.log(7.0)).value == pytest.approx(7.0)


def test_a_model_without_words_cannot_be_measured() -> None:
    with tiny_llm() as llm, pytest.raises(ConfigError, match="has no tokenizer"):
        measure(llm, [1, 2, 3], context=2, stride=1)


@pytest.mark.parametrize(("context", "stride"), [(1, 1), (10_000, 1), (8, 9), (8, 0)])
def test_windows_that_cannot_be_are_refused(context: int, stride: int, words: LLM) -> None:
    with pytest.raises(RequestError, match=r"choose \d"):
        measure(words, [1, 2, 3], context, stride)
