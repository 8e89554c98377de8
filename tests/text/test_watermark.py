"""The watermark is found where it is, not where it is not, and changes nothing that is drawn from."""

import io
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock import LLM
from penstock.errors import ConfigError, RequestError
from penstock.runtime.core.request import SamplingParams
from penstock.runtime.ops.sampling.draw import uniform
from penstock.runtime.text.watermark import NUM_STREAMS, Watermark, uniform_numbers
from tests.real import DEFAULT, model_path

MARK = Watermark(b"a key that nobody else has" * 2)
PROMPTS = ["Once upon a time", "The history of the city begins", "Rivers are", "In this paper we"]
PLACES = 1024
ALLOWED = 1e-3


def test_the_numbers_are_those_of_the_draws() -> None:
    positions = np.arange(100, dtype=np.uint64)
    for seed in (0, 1, 2**62 + 12345, *MARK.seeds[:3]):
        for choice in (0, 3):
            keys = torch.full((100,), seed), torch.full((100,), choice), torch.arange(100)
            assert np.array_equal(uniform_numbers(seed, choice, positions), uniform(*keys).numpy())


def drawn_by(mark: Watermark | None, *, length: int, spread: int, source: random.Random) -> list[int]:
    """A text of a model without weights: of `spread` likely tokens each step, other ones every time."""
    seed = source.getrandbits(60) if mark is None else mark.seed(source.getrandbits(60))
    begin = source.randrange(PLACES)
    numbers = uniform_numbers(seed, 0, np.arange(begin, begin + length, dtype=np.uint64))
    return [sorted(source.sample(range(50_000), spread))[int(number * spread)] for number in numbers]


def test_a_marked_text_is_found_wherever_it_was_cut_from_and_others_are_not() -> None:
    source = random.Random(5)
    marked = [drawn_by(MARK, length=150, spread=6, source=source) for _ in range(4)]
    for text in marked:
        assert MARK.evidence(text, PLACES).p < ALLOWED
        assert MARK.evidence(text[20:130], PLACES).p < ALLOWED
        assert Watermark(b"another key of some length").evidence(text, PLACES).p > ALLOWED
    for _ in range(8):
        assert MARK.evidence(drawn_by(None, length=150, spread=6, source=source), PLACES).p > ALLOWED


@pytest.mark.slow
def test_texts_without_it_are_taken_for_marked_no_more_often_than_is_said() -> None:
    source = random.Random(7)
    values = [MARK.evidence(drawn_by(None, length=120, spread=6, source=source), 256).p for _ in range(400)]
    for allowed in (0.5, 0.1, 0.01):
        assert sum(p <= allowed for p in values) <= allowed * len(values) + 3.0 * (allowed * len(values)) ** 0.5


def test_a_model_s_answers_carry_it_and_those_of_other_seeds_do_not() -> None:
    with LLM(str(model_path(DEFAULT)), invariant=True) as llm:
        seeds = [MARK.seed(3), MARK.seed(40), 11, 12]
        params = [SamplingParams(temperature=1.0, seed=seed, max_tokens=220, ignore_eos=True) for seed in seeds]
        texts = [completion.choices[0].text for completion in llm.generate(PROMPTS, params)]
        found = [MARK.evidence(llm.files.tokenizer.encode(text, special=False), PLACES).p < ALLOWED for text in texts]
    assert found == [True, True, False, False]


def test_seeds_differ_from_answer_to_answer_and_from_key_to_key() -> None:
    assert len(set(MARK.seeds)) == NUM_STREAMS
    assert not {*MARK.seeds} & {*Watermark(b"another key of some length").seeds}
    assert all(0 <= seed < 2**63 for seed in MARK.seeds)


def test_what_cannot_be_a_key_or_a_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="key has 3 bytes"):
        Watermark(b"abc")
    with pytest.raises(ConfigError, match="cannot read the watermark's key"):
        Watermark.from_file(tmp_path / "nothing")
    with pytest.raises(RequestError, match="32 are the least"):
        MARK.evidence([1] * 31)


@pytest.mark.slow
def test_a_server_marks_and_the_command_finds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.cli import detect
    from tests.server.serving import serving

    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    body = {"prompt": PROMPTS[0], "max_tokens": 250, "temperature": 1.0, "ignore_eos": True}
    with serving("--watermark", str(key), model=str(model_path(DEFAULT)), is_real=True) as server:
        text = server.post("/v1/completions", body | {"seed": 4}).json()["choices"][0]["text"]
    (tmp_path / "text").write_text(text)
    assert detect.run(detect.Config(tmp_path / "text", key)) == 0
    assert "carries the watermark" in capsys.readouterr().out
    (tmp_path / "other").write_bytes(b"o" * 32)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert detect.run(detect.Config(None, tmp_path / "other", json=True)) == 1
    assert '"is_marked": false' in capsys.readouterr().out
