"""From a body of the Messages API to a generation.

system, tools, messages          ->  Chat: a system message, then turns; tool results become messages of their own
cache_control on a block         ->  a pin after the message that holds the block
a last turn of the assistant     ->  the answer goes on where it ends
"""

from collections.abc import Iterable, Iterator

import msgspec

from penstock.runtime.text.tools.grammar import Tool
from penstock.service.server.anthropic.protocol import Block, CacheControl, CountBody, MessagesBody, ToolParam
from penstock.service.server.calls.generation import (
    TEXT,
    CacheHints,
    CachePin,
    Chat,
    ChatMessage,
    Generation,
    OutputForm,
    SamplingOptions,
    ToolCall,
    ToolChoice,
)
from penstock.service.server.http.faults import ANTHROPIC_NAMES, checked_name, invalid, unsupported

BILLING = "x-anthropic-billing-header:"
"""System blocks that begin so hold a number that is new in every request; nothing after it would ever be found in the cache."""
TTL_S = {"5m": 300.0, "1h": 3600.0}
MAX_BREAKPOINTS = 4
MODES = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}


def generation_of(body: MessagesBody) -> Generation:
    chat = chat_of(body)
    thinking = body.thinking
    if thinking is not None and thinking.budget_tokens is not None and 0 < body.max_tokens <= thinking.budget_tokens:
        raise invalid("thinking.budget_tokens must be below max_tokens", "thinking.budget_tokens")
    return Generation(
        prompt=chat,
        sampling=SamplingOptions(
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=body.top_k,
            seed=body.seed,
            max_tokens=body.max_answer,
            stops=tuple(body.stop_sequences or ()),
        ),
        output=_output(body),
        cache=CacheHints(pins=_pins(body, len(chat.messages))),
        max_reasoning_tokens=None if thinking is None else thinking.budget_tokens,
        is_budget_advice=True,
        param="messages",
    )


def chat_of(body: CountBody) -> Chat:
    messages = list(_messages(body))
    is_prefill = messages[-1].role == "assistant"
    return Chat(
        messages=tuple(messages),
        tools=tuple(_tool(tool, number) for number, tool in enumerate(body.tools or ())),
        tool_choice=_tool_choice(body),
        variables=_variables(body),
        adds_generation_prompt=not is_prefill,
        continues_final=is_prefill,
    )


def _messages(body: CountBody) -> Iterator[ChatMessage]:
    system = _system_text(body)
    if system:
        yield ChatMessage(role="system", content=system)
    called: set[str] = set()
    for number, turn in enumerate(body.messages):
        where = f"messages[{number}].content"
        if isinstance(turn.content, str):
            yield ChatMessage(role=turn.role, content=turn.content)
        elif turn.role == "assistant":
            called.update(block.id or "" for block in turn.content if block.type == "tool_use")
            yield _assistant(turn.content, where)
        else:
            yield from _results(turn.content, where, called)
            words = [_words(block, where) for block in turn.content if block.type != "tool_result"]
            if words or not turn.content:
                yield ChatMessage(role=turn.role, content="".join(words))


def _system_text(body: CountBody) -> str:
    if body.system is None or isinstance(body.system, str):
        return body.system or ""
    words = [_words(block, "system") for block in body.system]
    return "\n".join(text for text in words if not text.startswith(BILLING))


def _assistant(blocks: Iterable[Block], where: str) -> ChatMessage:
    words, thoughts, calls = [], [], []
    for number, block in enumerate(blocks):
        if block.type == "tool_use":
            arguments = msgspec.json.encode(block.input or {}).decode()
            name = checked_name(block.name or "", ANTHROPIC_NAMES, f"{where}[{number}].name")
            calls.append(ToolCall(block.id or "", name, arguments))
        elif block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type != "redacted_thinking":
            words.append(_words(block, where))
    content = "".join(words)
    return ChatMessage(
        role="assistant",
        content=content if content or not calls else None,
        reasoning="".join(thoughts),
        tool_calls=tuple(calls),
    )


def _results(blocks: Iterable[Block], where: str, called: set[str]) -> Iterator[ChatMessage]:
    for block in blocks:
        if block.type != "tool_result":
            continue
        if not block.tool_use_id:
            raise invalid(f"{where}: a tool_result has no tool_use_id; send it", where)
        if block.tool_use_id not in called:
            raise invalid(f"{where}: no tool_use before it has the id {block.tool_use_id[:80]!r}; send that too", where)
        content = block.content
        if isinstance(content, list):
            content = "".join(_words(part, where) for part in content)
        yield ChatMessage(role="tool", content=content or "", tool_call_id=block.tool_use_id)


def _words(block: Block, where: str) -> str:
    """The text of a block. What is no text is refused: nothing of it would reach the model."""
    if block.type == "text":
        if block.text is None:
            raise invalid(f"{where}: a text block has no text; send it", where)
        return block.text
    if block.type == "document" and block.source is not None and block.source.type == "text":
        head = "".join(f"{part}\n" for part in (block.title, block.context) if part)
        return f"{head}{block.source.data or ''}\n"
    raise unsupported(f"{where} of type {block.type[:40]}", "send text")


def _tool(tool: ToolParam, number: int) -> Tool:
    if tool.type not in (None, "custom"):
        raise unsupported(f"tools[{number}] of type {tool.type[:40]}", "describe it as a custom tool")
    name = checked_name(tool.name, ANTHROPIC_NAMES, f"tools[{number}].name")
    return Tool(name, tool.description or "", tool.input_schema or {"type": "object"}, bool(tool.strict))


def _tool_choice(body: CountBody) -> ToolChoice:
    choice = body.tool_choice
    if choice is None:
        return ToolChoice()
    if choice.type == "tool" and not choice.name:
        raise invalid("tool_choice of type tool names no tool; add its name", "tool_choice.name")
    names = (choice.name,) if choice.type == "tool" and choice.name else ()
    return ToolChoice(MODES[choice.type], names, not choice.disable_parallel_tool_use)  # type: ignore[arg-type]


def _variables(body: CountBody) -> dict[str, object]:
    variables: dict[str, object] = {}
    if body.thinking is not None:
        variables["enable_thinking"] = body.thinking.type != "disabled"
    if body.output_config is not None and body.output_config.effort is not None:
        variables["reasoning_effort"] = body.output_config.effort
    return variables


def _output(body: CountBody) -> OutputForm:
    if body.output_config is None or body.output_config.format is None:
        return TEXT
    return OutputForm("schema", body.output_config.format.schema, "output_config.format")


def _pins(body: CountBody, num_messages: int) -> tuple[CachePin, ...]:
    """Where the client marked an end of what it will send again."""
    pins = list(_marks(body))
    if len(pins) > MAX_BREAKPOINTS:
        raise invalid(f"{len(pins)} blocks have cache_control; at most {MAX_BREAKPOINTS} may", "cache_control")
    if body.cache_control is not None:
        pins.append(CachePin(num_messages, _ttl_s(body.cache_control)))
    return tuple(pins)


def _marks(body: CountBody) -> Iterator[CachePin]:
    for tool in body.tools or ():
        if tool.cache_control is not None:
            yield CachePin(0, _ttl_s(tool.cache_control))
    position = 1 if _system_text(body) else 0
    if isinstance(body.system, list):
        yield from (CachePin(position, _ttl_s(block.cache_control)) for block in body.system if block.cache_control)
    for turn in body.messages:
        blocks = turn.content if isinstance(turn.content, list) else []
        results = [block for block in blocks if block.type == "tool_result"] if turn.role != "assistant" else []
        position += len(results) + (len(results) < len(blocks) or not blocks)
        yield from (CachePin(position, _ttl_s(block.cache_control)) for block in blocks if block.cache_control)


def _ttl_s(control: CacheControl) -> float:
    return TTL_S[control.ttl or "5m"]
