"""Tools as a conversation tells of them; for models whose template has none, tools, calls and results are texts of it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

RESULT_ROLES = ("tool", "function")
HEAD = """You may call functions. The functions are, one JSON object a line:
<tools>
{tools}
</tools>
To call one, write a JSON object with its name and arguments between these tags:
<tool_call>
{{"name": <function-name>, "arguments": <arguments-object>}}
</tool_call>"""


class Tool(NamedTuple):
    """A function that the model may call."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    """JSON schema of its arguments."""
    is_strict: bool = False

    @property
    def described(self) -> dict[str, Any]:
        """As templates read it."""
        parameters = dict(self.parameters or {"type": "object"})
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": parameters},
        }

    def is_text(self, argument: str) -> bool:
        """The argument is a text by the schema."""
        properties = (self.parameters or {}).get("properties")
        own = properties.get(argument) if isinstance(properties, Mapping) else None
        return isinstance(own, Mapping) and own.get("type") == "string"


def described(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The conversation for a template that knows no tools: they stand in the system message, calls and results in texts."""
    plain = calls_as_text(messages)
    text = HEAD.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if plain and plain[0]["role"] == "system":
        return [plain[0] | {"content": f"{plain[0]['content']}\n\n{text}"}, *plain[1:]]
    return [{"role": "system", "content": text}, *plain]


def calls_as_text(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The conversation with calls and results as texts. Results, and what the user says after them, are one turn."""
    plain: list[dict[str, Any]] = []
    is_answered = False
    for message in messages:
        is_result = message["role"] in RESULT_ROLES
        turn = _plain(message)
        if is_answered and turn["role"] == "user" and isinstance(turn["content"], str):
            plain[-1] = turn | {"content": f"{plain[-1]['content']}\n{turn['content']}"}
        else:
            plain.append(turn)
        is_answered = is_result
    return plain


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    if message["role"] in RESULT_ROLES:
        return {"role": "user", "content": f"<tool_response>\n{message.get('content') or ''}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    texts = [message["content"]] if message.get("content") else []
    for call in calls:
        texts.append(f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>")
    return {"role": message["role"], "content": "\n".join(texts)}
