"""Prompts equal transformers' byte for byte, and every failure is the client's or the model's, by name."""

import itertools
import json
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import chat_template_utils

from penstock.errors import ModelFileError, RequestError
from penstock.runtime.formats.gguf import GgufFile
from penstock.runtime.text.template.chat import ChatTemplate
from penstock.runtime.text.template.shape import HEAD
from tests.real import DEFAULT, model_path
from tests.text.sources import real_tokenizer, small_tokenizers
from tests.text.templates import CHATML, DEEPSEEK, FAMILIES, GEMMA, LLAMA3, MISTRAL, PARTS_ONLY, QWEN

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
NOW = datetime(2025, 3, 4, 5, 6, 7)

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the <weather> & more, für alle",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    },
    {"type": "function", "function": {"name": "time", "parameters": {}}},
]
CALL = {"id": "abc123def", "type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}

CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "question": [{"role": "user", "content": "Hi there"}],
    "system": [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "  Hi\n"}],
    "turns": [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\ntwo"},
        {"role": "user", "content": "three 👍 <|im_end|> {{ 7 * 7 }}"},
    ],
    "reasoning": [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two", "reasoning": "because"},
        {"role": "user", "content": "three"},
    ],
    "tools": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": '{"celsius": 7}', "tool_call_id": "abc123def"},
        {"role": "assistant", "content": "Cold."},
        {"role": "user", "content": "Thanks"},
    ],
    "answer last": [{"role": "user", "content": "one"}, {"role": "assistant", "content": " two "}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": " b"}]}],
    "empty": [{"role": "user", "content": ""}],
    "wrong order": [{"role": "assistant", "content": "x"}, {"role": "assistant", "content": "y"}],
    "odd role": [{"role": "narrator", "content": "x"}],
    "no content": [{"role": "user"}],
}


def by_transformers(source: str, messages: list[dict[str, Any]], **options: Any) -> str | None:
    """What transformers renders; None where it fails."""
    try:
        rendered, _ = chat_template_utils.render_jinja_template([messages], chat_template=source, **SPECIAL, **options)
    except Exception:
        return None
    return str(rendered[0])


def by_us(source: str, messages: list[dict[str, Any]], **options: Any) -> str | None:
    variables = {key: options.pop(key) for key in ("enable_thinking", "today") if key in options}
    try:
        return ChatTemplate(source, special_tokens=SPECIAL).render(messages, variables=variables, now=NOW, **options)
    except RequestError:
        return None


@pytest.fixture(autouse=True)
def same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fixed(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return NOW

    monkeypatch.setattr(chat_template_utils, "datetime", Fixed)


# Where a template cannot read a shape of message, we bring it into one it can; transformers fails, shows a list or is silent.
KNOWING = [family for family, source in FAMILIES.items() if "tools" in source]
SPEAKING = [family for family, source in FAMILIES.items() if "tool_calls" in source]
RESHAPED = {
    *((family, "tools") for family in FAMILIES if family not in SPEAKING),
    *((family, "parts") for family in ("chatml", "llama3", "qwen", "mistral", "deepseek", "medley")),
    *(("parts-only", name) for name in CONVERSATIONS if name != "parts"),
    ("deepseek", "tools"),
}


READABLE = [pair for pair in itertools.product(FAMILIES, CONVERSATIONS) if pair not in RESHAPED]


@pytest.mark.parametrize(("family", "conversation"), READABLE)
def test_prompts_equal_transformers(family: str, conversation: str) -> None:
    for options in (
        {},
        {"add_generation_prompt": True},
        {"add_generation_prompt": True, "tools": TOOLS if family in KNOWING else None},
        {"add_generation_prompt": True, "enable_thinking": False, "today": "then"},
        {"documents": [{"title": "T", "text": "body"}]},
    ):
        source, messages = FAMILIES[family], CONVERSATIONS[conversation]
        assert by_us(source, messages, **options) == by_transformers(source, messages, **options), options


@pytest.mark.parametrize(
    ("family", "conversation"),
    [
        (family, turns)
        for family, turns in READABLE
        if family != "medley" and turns in ("answer last", "turns", "tools")
    ],
)
def test_continued_messages_equal_transformers(family: str, conversation: str) -> None:
    source, messages = FAMILIES[family], CONVERSATIONS[conversation]
    options = {"continue_final_message": True}
    assert by_us(source, messages, **options) == by_transformers(source, messages, **options)


def test_the_prompt_of_a_real_model_equals_transformers() -> None:
    metadata = GgufFile(model_path(DEFAULT)).metadata
    template = ChatTemplate.from_gguf(metadata, real_tokenizer(DEFAULT))
    assert template is not None
    for messages in CONVERSATIONS.values():
        if isinstance(messages[0].get("content"), str) and not any("tool_calls" in message for message in messages):
            expected = by_transformers(template.source, messages, add_generation_prompt=True)
            assert template.render(messages, add_generation_prompt=True) == expected


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in SPEAKING])
@pytest.mark.parametrize("has_tools", [True, False])
def test_what_a_template_knows_nothing_of_stands_in_its_messages(family: str, has_tools: bool) -> None:
    asked, _, result, answer, thanks = CONVERSATIONS["tools"]
    call = json.dumps(CALL["function"], ensure_ascii=False)
    written = [
        asked,
        {"role": "assistant", "content": f"<tool_call>\n{call}\n</tool_call>"},
        {"role": "user", "content": f"<tool_response>\n{result['content']}\n</tool_response>"},
        answer,
        thanks,
    ]
    given = TOOLS if has_tools else None
    if has_tools and family not in KNOWING:
        head = HEAD.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in TOOLS))
        written = [{"role": "system", "content": head}, *written]
    source = FAMILIES[family]
    rendered = by_us(source, CONVERSATIONS["tools"], tools=given)
    assert rendered is not None
    assert rendered == by_us(source, written, tools=given if family in KNOWING else None)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "tool_calls": "x"},
        {"role": "assistant", "tool_calls": ["x"]},
        {"role": "assistant", "tool_calls": [{"id": "abc123def"}]},
        {"role": "tool", "content": [{"type": "image_url"}]},
        {"role": "assistant", "tool_calls": [CALL], "content": [{"type": "image_url"}]},
    ],
)
def test_what_cannot_be_written_as_text_is_named(message: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="1"):
        ChatTemplate(CHATML).render([{"role": "user", "content": "x"}, message])


def test_what_a_template_knows_nothing_of_stands_beside_parts() -> None:
    parts = {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    turns = [
        {"role": "system"},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "abc123def"},
    ]
    rendered = [
        ChatTemplate(CHATML).render([turn | content for turn in turns], tools=TOOLS)
        for content in (parts, {"content": "a\nb"})
    ]
    assert rendered[0] == rendered[1]
    assert "a\nb\n<tool_call>" in rendered[0]


def test_parts_become_text_where_the_template_reads_text() -> None:
    template = ChatTemplate(CHATML)
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert template.render(parts) == template.render([{"role": "user", "content": "a\nb"}])
    with pytest.raises(RequestError, match="image_url"):
        template.render([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])


def test_text_becomes_parts_where_the_template_reads_parts() -> None:
    template = ChatTemplate(PARTS_ONLY)
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    assert template.render([{"role": "user", "content": "a"}]) == template.render(parts) == "<|user|>a</s>\n"


@pytest.mark.parametrize("source", [LLAMA3, QWEN, MISTRAL, DEEPSEEK], ids=["llama3", "qwen", "mistral", "deepseek"])
def test_tool_arguments_may_come_as_text_or_object(source: str) -> None:
    """The protocol sends JSON text; templates want one or the other."""
    template = ChatTemplate(source, special_tokens=SPECIAL)
    as_text = CALL | {"function": {"name": "weather", "arguments": json.dumps({"city": "Köln"}, ensure_ascii=False)}}
    rendered = {
        template.render(
            [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
        )
        for call in (CALL, as_text)
    }
    assert len(rendered) == 1
    assert '{"city": "Köln"}' in rendered.pop()


def test_the_templates_own_refusal_reaches_the_client() -> None:
    with pytest.raises(RequestError, match="turns go user, assistant"):
        ChatTemplate(GEMMA).render(CONVERSATIONS["wrong order"])


@pytest.mark.parametrize(
    "messages",
    [
        [],
        ["x"],
        [{"content": "no role"}],
        [{"role": 3, "content": "x"}],
        [{"role": "user", "content": object()}],
        [{"role": "user", "content": None}],
        "text",
        {"role": "user"},
    ],
)
def test_malformed_conversations_are_the_clients_fault(messages: Any) -> None:
    with pytest.raises(RequestError):
        ChatTemplate(CHATML).render(messages)


def test_deeply_nested_values_are_refused() -> None:
    nested: Any = "x"
    for _ in range(10_000):
        nested = [nested]
    with pytest.raises(RequestError, match="nested"):
        ChatTemplate(CHATML).render([{"role": "user", "content": nested}])


def test_the_callers_messages_are_not_touched() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}], "reasoning": "r"}]
    before = json.dumps(messages)
    ChatTemplate(CHATML).render(messages)
    assert json.dumps(messages) == before


@pytest.mark.parametrize(
    "name",
    [
        *("chat_template", "tokenize", "tools", "documents", "messages", "add_generation_prompt", "bos_token"),
        *(
            "__class__",
            "_private",
            "strftime_now",
            "raise_exception",
            "range",
            "self",
            "loop",
            "",
            "a b",
            "1x",
            "x" * 99,
        ),
    ],
)
def test_reserved_variables_are_refused(name: str) -> None:
    with pytest.raises(RequestError, match="not a variable"):
        ChatTemplate(QWEN).render([{"role": "user", "content": "x"}], variables={name: "y"})


def test_variables_the_template_does_not_read_have_no_effect() -> None:
    template = ChatTemplate(QWEN)
    messages = [{"role": "user", "content": "x"}]
    assert template.render(messages, variables={"mood": "grim"}) == template.render(messages)


def test_named_templates() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "tools", "rag": "documents"})
    messages = [{"role": "user", "content": "x"}]
    assert template.render(messages) == "plain"
    assert template.render(messages, tools=TOOLS) == "tools"
    with pytest.raises(ModelFileError, match="tool_use, rag"):
        ChatTemplate({"tool_use": "tools", "rag": "documents"})


def test_templates_of_a_gguf_file() -> None:
    tokenizer = small_tokenizers()["byte-level"]
    metadata = {"tokenizer.chat_template": "{{ bos_token }}", "tokenizer.chat_template.tool_use": "t"}
    template = ChatTemplate.from_gguf(metadata, tokenizer)
    assert template is not None
    assert template.render([{"role": "user", "content": "x"}]) == "<|im_start|>"
    assert template.render([{"role": "user", "content": "x"}], tools=TOOLS) == "t"
    assert ChatTemplate.from_gguf({}, tokenizer) is None
    with pytest.raises(ModelFileError):
        ChatTemplate.from_gguf({"tokenizer.chat_template": 3}, tokenizer)


def test_templates_of_a_directory(tmp_path: Path) -> None:
    tokenizer = small_tokenizers()["byte-level"]
    assert ChatTemplate.from_directory(tmp_path, tokenizer) is None
    listed = [{"name": "default", "template": "from the list"}, {"name": "tool_use", "template": "tools"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": listed}))
    template = ChatTemplate.from_directory(tmp_path, tokenizer)
    assert template is not None
    assert template.render([{"role": "user", "content": "x"}], tools=[]) == "tools"
    (tmp_path / "chat_template.jinja").write_text("from its own file")
    template = ChatTemplate.from_directory(tmp_path, tokenizer)
    assert template is not None
    assert template.render([{"role": "user", "content": "x"}]) == "from its own file"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": [{"name": 1}]}))
    with pytest.raises(ModelFileError):
        ChatTemplate.from_directory(tmp_path, tokenizer)


def test_time_is_only_what_is_told() -> None:
    template = ChatTemplate(LLAMA3, special_tokens=SPECIAL)
    messages = [{"role": "user", "content": "x"}]
    assert "04 Mar 2025" in template.render(messages, now=NOW)
    assert "1 Jan 2024" in template.render(messages)


def test_threads_render_independently() -> None:
    template = ChatTemplate(QWEN)
    wrong: list[str] = []

    def work(number: int) -> None:
        messages = [{"role": "user", "content": f"thread {number}"}]
        expected = f"<|im_start|>system\nBe helpful.<|im_end|>\n<|im_start|>user\nthread {number}<|im_end|>\n"
        for _ in range(50):
            rendered = template.render(messages)
            if rendered != expected:
                wrong.append(rendered)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_long_conversations_stay_within_the_budget() -> None:
    """What a client may rightly send is never stopped: many turns, long turns."""
    for source in (CHATML, QWEN, GEMMA, MISTRAL, DEEPSEEK, LLAMA3):
        template = ChatTemplate(source, special_tokens=SPECIAL)
        many = [{"role": ("user", "assistant")[i % 2], "content": f"turn {i} </think> x"} for i in range(2001)]
        assert "turn 2000" in template.render(many, tools=TOOLS)
        long = [{"role": "user", "content": "wörd " * 200_000}]
        assert len(template.render(long)) > 900_000
