"""Laws of the commands around a model in this process, over a tiny one: what they read, what they print, how they end."""

import io
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock import LLM, SamplingParams
from penstock.cli import loading
from penstock.cli.main import main
from penstock.cli.talk import chat
from penstock.cli.talk.sampling import SamplingConfig
from tests.offline import write_chat_model

GREEDY = ["--temperature", "0", "--max-tokens", "8"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_chat_model(tmp_path_factory.mktemp("model") / "tiny.gguf"))


@pytest.fixture(scope="module")
def llm(path: str) -> LLM:
    return LLM(path, max_sequences=8)


@pytest.fixture
def opened(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> LLM:
    """Commands take this model instead of loading their own."""
    monkeypatch.setattr(LLM, "close", lambda self: None)
    monkeypatch.setattr("penstock.cli.talk.generate.open_llm", lambda config: llm)
    monkeypatch.setattr("penstock.cli.talk.chat.open_llm", lambda config: llm)
    monkeypatch.setattr("penstock.cli.evaluate.command.open_llm", lambda config: llm)
    return llm


def type_in(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def answer(llm: LLM, *messages: dict[str, str]) -> str:
    return llm.chat(list(messages), SamplingParams(temperature=0.0, max_tokens=8)).text


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


# ---- generate


def test_prompts_from_words_file_lines_and_input_give_the_same(
    opened: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["the first", "a second, longer prompt", "third"]
    flags = ["generate", *GREEDY, "--json"]
    lines, objects = tmp_path / "lines.txt", tmp_path / "objects.jsonl"
    lines.write_text("\n".join(asked) + "\n\n")
    objects.write_text("".join(json.dumps({"prompt": prompt, "id": 3}) + "\n" for prompt in asked))
    reported = []
    for words in ([*flags, "--", *asked], [*flags, "--file", str(lines)], [*flags, "--file", str(objects)], flags):
        type_in(monkeypatch, lines.read_text())
        assert main(words) == 0
        reported.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    for answers in reported:
        assert [each["prompt"] for each in answers] == asked
        assert [each["text"] for each in answers] == [each["text"] for each in reported[0]]
        for each in answers:
            assert each["completion_tokens"] <= 8
            assert each["finish_reason"] in ("length", "stop")
            assert each["timings"]["total_s"] >= each["timings"]["first_token_s"] >= 0
            assert each["cached_tokens"] >= 0
    params = SamplingParams(temperature=0.0, max_tokens=8)
    assert [each["text"] for each in reported[0]] == [each.text for each in opened.generate(asked, params)]


def test_one_prompt_prints_its_text_alone(opened: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", *GREEDY, "the"]) == 0
    text = opened.generate("the", SamplingParams(temperature=0.0, max_tokens=8))[0].text
    assert capsys.readouterr().out == text + "\n"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("", "there is no prompt"),
        ('{"prompt": "a"}\n{"text": "b"}', "line 2 of"),
        ('{"prompt": "a"}\n\nplain', "line 3 of"),
        ('{"prompt": 7}', "line 1 of"),
    ],
)
def test_a_file_without_prompts_is_refused(
    content: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompts"
    file.write_text(content)
    assert main(["generate", "--file", str(file)]) == 2
    assert fault in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--temperature", "101"], "temperature is 101"),
        (["--top-p", "0"], "top_p is 0"),
        (["--file", "nowhere.txt"], "cannot read nowhere.txt"),
        (["--file", "nowhere.txt", "words"], "give one or the other"),
        (["--model", "no/such/model", "words"], "there is no model"),
    ],
)
def test_a_wrong_option_ends_before_a_model_is_loaded(
    words: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", *words]) == 2
    assert fault in capsys.readouterr().err


def test_without_a_seed_texts_differ_and_with_one_they_do_not(opened: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    def texts(*flags: str) -> list[str]:
        assert main(["generate", "--json", "--max-tokens", "8", *flags, "the", "the", "the"]) == 0
        return [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()]

    assert len({*texts(), *texts()}) > 1
    assert texts("--seed", "5") == texts("--seed", "5")
    assert len(set(texts("--seed", "5"))) == 1


# ---- chat


def test_a_chat_remembers_and_forgets(
    opened: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(
        monkeypatch, "the ab\n\ntwo\\\nlines\n/clear\nthe ab\n/system be brief\nthe ab\n/nothing\n/help\n/exit\nno\n"
    )
    assert main(["chat", *GREEDY]) == 0
    captured = capsys.readouterr()
    first = answer(opened, user("the ab"))
    second = answer(opened, user("the ab"), assistant(first), user("two\nlines"))
    briefly = answer(opened, {"role": "system", "content": "be brief"}, user("the ab"))
    assert captured.out == "".join(f"{text}\n" for text in (first, second, first, briefly))
    assert captured.err.count("tokens/s") == 4
    assert captured.err.count("cached)") == 4
    assert "there is no /nothing" in captured.err
    assert captured.err.count("/clear   ") == 2


def test_the_system_flag_is_the_system_message(
    opened: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, "the ab")
    assert main(["chat", *GREEDY, "--system", "be brief"]) == 0
    assert capsys.readouterr().out == answer(opened, {"role": "system", "content": "be brief"}, user("the ab")) + "\n"


class Interrupting:
    """Presses Ctrl-C while an answer is being shown, at these of its pieces."""

    def __init__(self, *pieces: int) -> None:
        self.pieces = pieces
        self.num_shown = 0

    def __call__(self, text: str) -> None:
        self.num_shown += 1
        if self.num_shown in self.pieces:
            signal.raise_signal(signal.SIGINT)


def test_an_interrupt_ends_the_answer_and_not_the_chat(
    opened: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = Interrupting(3)
    monkeypatch.setattr(chat, "write_text", shown)
    before = signal.getsignal(signal.SIGINT)
    talk = chat.TerminalChat(opened, SamplingConfig(temperature=0.0, max_tokens=8))
    talk.talk(iter(["the ab", "again"]))
    assert signal.getsignal(signal.SIGINT) is before
    assert [message["role"] for message in talk._messages] == ["user", "assistant", "user", "assistant"]
    whole = answer(opened, user("the ab"))
    assert whole.startswith(talk._messages[1]["content"])
    assert len(talk._messages[1]["content"]) < len(whole)
    assert capsys.readouterr().err.count("stopped") == 1
    assert not opened.engine.scheduler.has_work or not opened.generate([1], SamplingParams(max_tokens=1))[0].text
    opened.engine.scheduler.check()


def test_a_second_interrupt_leaves(opened: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(text: str) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(chat, "write_text", twice)
    asked: list[str] = []
    talk = chat.TerminalChat(opened, SamplingConfig(max_tokens=8))
    talk.talk(asked.append(line) or line for line in ["the ab", "again"])
    assert asked == ["the ab"]


def test_a_conversation_that_is_too_long_is_told_and_goes_on(
    opened: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, f"{'x' * 600}\nthe ab\n")
    assert main(["chat", *GREEDY]) == 0
    captured = capsys.readouterr()
    assert "maximum context length is 512" in captured.err
    assert captured.out == answer(opened, user("the ab")) + "\n"


# ---- eval, show, list


def test_perplexity_is_told_in_words_and_numbers(
    opened: LLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "text"
    file.write_text("the ab, and the cd. " * 20)
    assert main(["eval", "perplexity", str(file), "--json", "--context", "64", "stride=16"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["perplexity"] > 1.0
    assert reported["tokens"] == reported["scored_tokens"] + 1
    assert main(["eval", "perplexity", str(file), "--tokens", "50"]) == 0
    assert "perplexity" in capsys.readouterr().out
    assert main(["eval", "perplexity", str(file), "--context", "600"]) == 2
    assert "choose 2 to 511" in capsys.readouterr().err
    assert main(["eval", "perplexity", str(tmp_path / "absent")]) == 2
    assert main(["eval", "perplexty", str(file)]) == 2
    assert "perplexity" in capsys.readouterr().err


def test_predictions_are_kept_and_compared(
    opened: LLM, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.evaluate.divergence.open_llm", lambda config: opened)
    file, kept = tmp_path / "text", tmp_path / "kept.logits"
    file.write_text("the orchard and the river " * 12)
    asked = ["eval", "perplexity", str(file), "--json", "--context", "48", "stride=16"]
    assert main(asked) == 0
    plain = json.loads(capsys.readouterr().out)
    assert main([*asked, "--save-logits", str(kept)]) == 0
    saved = json.loads(capsys.readouterr().out)
    assert saved["perplexity"] == pytest.approx(plain["perplexity"], rel=1e-4)
    assert saved["scored_tokens"] == plain["scored_tokens"]
    for reference in (str(kept), "another"):
        assert main([*asked, "--reference", reference]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["kl"] == pytest.approx(0, abs=1e-6)
        assert found["same_top_1"] == 1
    (tmp_path / "a.json").write_text(json.dumps(plain))
    (tmp_path / "b.json").write_text(json.dumps(saved))
    assert main(["eval", "compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    assert "within chance" in capsys.readouterr().out
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"prompt": "the", "choices": ["orchard", "river"], "answer": 0, "topic": "nature"}\n' * 3)
    assert main(["eval", "tasks", str(questions), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["questions"] == 3


def described(capsys: pytest.CaptureFixture[str], name: str) -> dict[str, Any]:
    assert main(["show", name, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_model_file_is_described_whole(path: str, llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    found = described(capsys, path)
    assert found["parameters"]["total"] == llm.spec.num_parameters == sum(llm.spec.parameters_by_part.values())
    assert found["disk"]["total"] == found["memory"]["float32"]["total"] == 4 * llm.spec.num_parameters
    for part, count in llm.spec.parameters_by_part.items():
        assert found["disk"][part] == 4 * count
    assert found["kv_bytes_per_token"] == {"float32": 512, "bfloat16": 256}
    assert (found["tokenizer_size"], found["chat_template"]) == (llm.files.tokenizer.vocab_size, True)
    assert main(["show", path]) == 0
    words = capsys.readouterr().out
    assert "4 heads of 16, 2 of keys and values" in words
    assert "chat template     yes" in words


def test_a_known_model_needs_no_download(capsys: pytest.CaptureFixture[str]) -> None:
    found = described(capsys, "Mixtral-8x7B")
    assert found["parameters"]["total"] == 46_702_792_704
    assert found["parameters"]["active"] < 14e9
    assert found["layers"][0]["mlp"].startswith("2 of 8 experts")
    assert "path" not in found
    assert len(described(capsys, "gemma-3-270m")["layers"]) == 2


def test_fetched_models_are_listed(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["list"]) == 0
    assert "no model has been fetched" in capsys.readouterr().out
    assert main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["pull", path]) == 0
    assert path in capsys.readouterr().out


# ---- loading


def test_a_command_loads_what_its_config_names(path: str) -> None:
    from penstock.config import CacheConfig, EngineConfig, ModelConfig

    config = EngineConfig(ModelConfig(path, max_context=64), CacheConfig(num_blocks=8))
    with loading.open_llm(config) as llm:
        assert (llm.sizing.max_context, llm.sizing.num_blocks) == (64, 8)
        assert llm.config == config


# ---- bench latency, bench throughput


@pytest.mark.parametrize(
    "words",
    [
        ["latency", "--prompt", "0"],
        ["latency", "--answer", "-1"],
        ["latency", "--batch", "0"],
        ["throughput", "--num-requests", "0"],
        ["throughput", "--shared-prefix", "-3"],
    ],
)
def test_a_load_that_cannot_be_is_told_by_its_flag_before_a_model_is_loaded(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(f"penstock.cli.bench.{words[0]}.open_llm", lambda config: pytest.fail("a model was loaded"))
    assert main(["bench", *words]) == 2
    assert f"{words[1]} is {words[2]}" in capsys.readouterr().err


@pytest.mark.parametrize("answer", ["1", "3"])
def test_an_answer_of_one_token_has_no_time_between_tokens(
    answer: str, llm: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(LLM, "close", lambda self: None)
    monkeypatch.setattr("penstock.cli.bench.latency.open_llm", lambda config: llm)
    words = ["bench", "latency", "--prompt", "4", "--repeats", "2", "--json", "--answer", answer]
    assert main(words) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert any("TPOT" in name for name in figures) == (answer != "1")
    assert any("ITL" in name for name in figures) == (answer != "1")
    assert all(value > 0.0 for values in figures.values() for value in values)


@pytest.mark.parametrize("command", ["latency", "throughput"])
@pytest.mark.parametrize("num_done", [0, 1, 2])
def test_an_interrupt_keeps_the_runs_that_are_done(
    command: str, num_done: int, llm: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    generate, calls = LLM.generate, []

    def interrupted(self: LLM, *arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) > 1 + num_done:  # the first warms up
            raise KeyboardInterrupt
        return generate(self, *arguments, **options)

    monkeypatch.setattr(LLM, "generate", interrupted)
    monkeypatch.setattr(LLM, "close", lambda self: None)
    monkeypatch.setattr(f"penstock.cli.bench.{command}.open_llm", lambda config: llm)
    sizes = ["--prompt", "4"] if command == "latency" else ["--prompts", "4", "--answers", "2", "--num-requests", "3"]
    assert main(["bench", command, *sizes, "--repeats", "3", "--json"]) == 130
    printed = capsys.readouterr()
    assert "interrupted" in printed.err
    if num_done:
        assert f"{num_done} of 3 runs" in printed.err
        assert {len(values) for values in json.loads(printed.out)["figures"].values()} == {num_done}
    else:
        assert printed.out == ""
