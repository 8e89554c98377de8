"""How families of models write tool calls, as data: the table, and which row a chat template implies.

    opens [ list_opens call separator call ... list_closes ] closes

A call is written in one of four syntaxes. Blanks between the parts do not matter to the parser; `pad` is what is written.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JsonCall:
    """`{"name": "f", "arguments": {...}}`"""

    name_key: str = "name"
    arguments_key: str = "arguments"


_JSON = JsonCall()


@dataclass(frozen=True, slots=True)
class HeadedCall:
    """`before` name `between` arguments `after`; what stands between name and `between` is passed over."""

    before: str
    between: str
    after: str
    after_name: str = ""
    """Written between the name and `between`."""


@dataclass(frozen=True, slots=True)
class PythonCall:
    """`f(a=1, b="x")`"""


@dataclass(frozen=True, slots=True)
class TaggedCall:
    """The name, then every argument between tags; texts stand there as they are, other values as JSON."""

    before: str
    after_name: str
    key_opens: str
    key_closes: str
    value_opens: str
    value_closes: str
    after: str
    pad: str = ""
    """Written on both sides of a value, and no part of it."""


CallSyntax = JsonCall | HeadedCall | PythonCall | TaggedCall


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    name: str
    signs: tuple[str, ...]
    """Texts that a chat template of the family has, all of them."""
    call: CallSyntax
    opens: str = ""
    """Begins calls wherever it appears; without it an answer either begins with calls or has none."""
    also_opens: tuple[str, ...] = ()
    """Other texts that begin calls; without `opens`, the one that may stand before the first of them."""
    closes: str = ""
    list_opens: str = ""
    list_closes: str = ""
    separator: str | None = None
    """Between calls of one opening; None where every call has an opening of its own."""
    pad: str = ""
    """Written inside `opens` and `closes`."""
    between_openings: str = "\n"
    speech: str = ""
    """Written before content, where the family marks that too."""

    @property
    def lead(self) -> str:
        """The first character of calls, where nothing else opens them."""
        return self.list_opens or "{"

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that must stay visible for the parser, also where they are special tokens."""
        syntax = self.call
        own: tuple[str, ...] = (self.opens, *self.also_opens, self.closes)
        if isinstance(syntax, HeadedCall):
            own += (syntax.before, syntax.between, syntax.after)
        return tuple(text for text in own if text)


def _listed(name: str, *signs: str, opens: str = "", closes: str = "", call: CallSyntax = _JSON) -> ToolFormat:
    """Calls as a list between square brackets."""
    return ToolFormat(
        name=name,
        signs=signs,
        call=call,
        opens=opens,
        closes=closes,
        list_opens="[",
        list_closes="]",
        separator=", ",
    )


_HERMES = ToolFormat(
    name="hermes", signs=("<tool_call>",), call=JsonCall(), opens="<tool_call>", closes="</tool_call>", pad="\n"
)

FORMATS: dict[str, ToolFormat] = {
    row.name: row
    for row in (
        # Most telling first: this is also the order in which a template is looked through.
        ToolFormat(
            name="harmony",
            signs=("<|channel|>", "to=functions."),
            call=HeadedCall("", "<|message|>", "<|call|>", " <|constrain|>json"),
            opens="<|channel|>commentary to=functions.",
            also_opens=(
                "<|start|>assistant<|channel|>commentary to=functions.",
                "<|start|>assistant to=functions.",
                "<|channel|>analysis to=functions.",
            ),
            speech="<|channel|>final<|message|>",
            between_openings="<|start|>assistant",
        ),
        ToolFormat(
            name="kimi",
            signs=("<|tool_calls_section_begin|>",),
            call=HeadedCall("<|tool_call_begin|>functions.", "<|tool_call_argument_begin|>", "<|tool_call_end|>", ":0"),
            opens="<|tool_calls_section_begin|>",
            closes="<|tool_calls_section_end|>",
            separator="",
        ),
        ToolFormat(
            name="deepseek-v3.1",
            signs=("<｜tool▁calls▁begin｜>", "'<｜tool▁call▁begin｜>'+ tool['function']['name'] + '<｜tool▁sep｜>'"),
            call=HeadedCall("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
            opens="<｜tool▁calls▁begin｜>",
            closes="<｜tool▁calls▁end｜>",
            separator="",
        ),
        ToolFormat(
            name="deepseek",
            signs=("<｜tool▁calls▁begin｜>",),
            call=HeadedCall("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>"),
            opens="<｜tool▁calls▁begin｜>",
            closes="<｜tool▁calls▁end｜>",
            separator="\n",
        ),
        ToolFormat(
            name="mistral-args",
            signs=("[TOOL_CALLS]", "[ARGS]"),
            call=HeadedCall("", "[ARGS]", ""),
            opens="[TOOL_CALLS]",
            between_openings="",
        ),
        _listed("mistral", "[TOOL_CALLS]", opens="[TOOL_CALLS]"),
        _listed("phi", "<|tool_call|>", "<|/tool_call|>", opens="<|tool_call|>", closes="<|/tool_call|>"),
        _listed("granite", "<|tool_call|>", opens="<|tool_call|>"),
        ToolFormat(
            name="glm",
            signs=("<tool_call>", "<arg_key>"),
            call=TaggedCall("", "\n", "<arg_key>", "</arg_key>\n", "<arg_value>", "</arg_value>\n", ""),
            opens="<tool_call>",
            closes="</tool_call>",
        ),
        ToolFormat(
            name="qwen-xml",
            signs=("<tool_call>", "<function="),
            call=TaggedCall("<function=", ">\n", "<parameter=", ">", "", "</parameter>\n", "</function>", "\n"),
            opens="<tool_call>",
            closes="</tool_call>",
            pad="\n",
        ),
        _HERMES,
        ToolFormat(
            name="gemma",
            signs=("tool_code",),
            call=PythonCall(),
            opens="```tool_code",
            closes="```",
            pad="\n",
            separator="\n",
        ),
        _listed("llama-pythonic", "[func_name1(", call=PythonCall()),
        ToolFormat(
            name="llama-json",
            signs=('"parameters"', "<|python_tag|>"),
            call=JsonCall(arguments_key="parameters"),
            also_opens=("<|python_tag|>",),
            separator="; ",
        ),
    )
}

FALLBACK = _HERMES
"""For models whose template does not describe tools: they are described in the system message."""


def format_of_template(source: str) -> ToolFormat | None:
    """How a model with this chat template writes calls; None where the template has none."""
    return next((row for row in FORMATS.values() if all(sign in source for sign in row.signs)), None)
