"""Tools for models whose template has none: tools, calls and results are written into the conversation as text."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

HEAD = """You may call functions. The functions are, one JSON object a line:
<tools>
{tools}
</tools>
To call one, write a JSON object with its name and arguments between these tags:
<tool_call>
{{"name": <function-name>, "arguments": <arguments-object>}}
</tool_call>"""


def described(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The conversation for a template that knows no tools: they stand in the system message, calls and results in texts."""
    told = HEAD.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    plain = [_plain(message) for message in messages]
    if plain and plain[0]["role"] == "system":
        return [plain[0] | {"content": f"{plain[0]['content']}\n\n{told}"}, *plain[1:]]
    return [{"role": "system", "content": told}, *plain]


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    if message["role"] in ("tool", "function"):
        return {"role": "user", "content": f"<tool_response>\n{message.get('content') or ''}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    texts = [message["content"]] if message.get("content") else []
    for call in calls:
        texts.append(f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>")
    return {"role": message["role"], "content": "\n".join(texts)}
