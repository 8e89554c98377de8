"""Answers with calls as each family writes them, and what is in them."""

from typing import NamedTuple

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
        "units": {"enum": ["celsius", "kelvin"]},
    },
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = {"get_weather": WEATHER, "stop-all": {"type": "object", "properties": {}, "additionalProperties": False}}

Calls = list[tuple[str, dict[str, object]]]


class Sample(NamedTuple):
    format: str
    text: str
    content: str
    calls: Calls


PARIS: Calls = [("get_weather", {"city": "Paris", "days": 3})]
BOTH: Calls = [*PARIS, ("stop-all", {})]
JSON = '{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}'
STOP = '{"name": "stop-all", "arguments": {}}'
DS = "<｜tool▁call▁begin｜>"

SAMPLES = [
    Sample("hermes", f"Let me see.\n<tool_call>\n{JSON}\n</tool_call>", "Let me see.", PARIS),
    Sample("hermes", f"<tool_call>\n{JSON}\n</tool_call>\n<tool_call>\n{STOP}\n</tool_call>\n", "", BOTH),
    Sample(
        "hermes", '<tool_call>{"arguments": {"city": "Paris", "days": 3}, "name": "get_weather"}</tool_call>', "", PARIS
    ),
    Sample("hermes", "no <tool_call> here", "no <tool_call> here", []),
    Sample(
        "hermes", '<tool_call>\n{"nome": 1}\n</tool_call> after', '<tool_call>\n{"nome": 1}\n</tool_call> after', []
    ),
    Sample("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", {"a": 1})]),
    Sample("hermes", "a <b>\n\n", "a <b>\n\n", []),
    Sample("llama-json", '{"name": "get_weather", "parameters": {"city": "Paris", "days": 3}}', "", PARIS),
    Sample(
        "llama-json",
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris", "days": 3}}; '
        '{"name": "stop-all", "parameters": {}}',
        "",
        BOTH,
    ),
    Sample("llama-json", '{"a": "no call"}', '{"a": "no call"}', []),
    Sample("llama-json", "Words {", "Words {", []),
    Sample("llama-pythonic", "[get_weather(city='Paris', days=3), stop-all()]", "", BOTH),
    Sample(
        "llama-pythonic",
        "[f(a=[1, (2.5, -3e2)], b={'x': True, \"y\": None}, c='it\\'s \\u00fc')]",
        "",
        [("f", {"a": [1, [2.5, -300.0]], "b": {"x": True, "y": None}, "c": "it's ü"})],
    ),
    Sample("llama-pythonic", "[f(a=[1, ], b={'x': 2, })]", "", [("f", {"a": [1], "b": {"x": 2}})]),
    Sample("llama-pythonic", "[1, 2] is a list", "[1, 2] is a list", []),
    Sample("mistral", f"[TOOL_CALLS][{JSON}, {STOP}]", "", BOTH),
    Sample(
        "mistral-args",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris", "days": 3}[TOOL_CALLS]stop-all[ARGS]{}',
        "",
        BOTH,
    ),
    Sample(
        "harmony",
        '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris", "days": 3}<|call|>',
        "",
        PARIS,
    ),
    Sample(
        "deepseek",
        f"Sure.<｜tool▁calls▁begin｜>{DS}function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Paris", "days": 3}\n```<｜tool▁call▁end｜>\n'
        f"{DS}function<｜tool▁sep｜>stop-all\n```json\n{{}}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "Sure.",
        BOTH,
    ),
    Sample(
        "deepseek-v3.1",
        f"<｜tool▁calls▁begin｜>{DS}get_weather<｜tool▁sep｜>"
        '{"city": "Paris", "days": 3}<｜tool▁call▁end｜>'
        f"{DS}stop-all<｜tool▁sep｜>{{}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        BOTH,
    ),
    Sample("granite", f"<|tool_call|>[{JSON}, {STOP}]", "", BOTH),
    Sample("phi", f"<|tool_call|>[{JSON}, {STOP}]<|/tool_call|>", "", BOTH),
    Sample("gemma", 'Yes.\n```tool_code\nget_weather(city="Paris", days=3)\nstop-all()\n```', "Yes.", BOTH),
    Sample(
        "glm",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>stop-all\n</tool_call>",
        "",
        BOTH,
    ),
    Sample(
        "qwen-xml",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
        "</function>\n</tool_call>\n<tool_call>\n<function=stop-all>\n</function>\n</tool_call>",
        "",
        BOTH,
    ),
    Sample(
        "kimi",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"city": "Paris", "days": 3}<|tool_call_end|><|tool_call_begin|>functions.stop-all:1'
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        "",
        BOTH,
    ),
]
