"""Chat templates written for these tests, each with the markers and the habits of a well-known family."""

CHATML = """\
{% for turn in messages %}{{ '<|im_start|>' + turn['role'] + '\\n' + turn['content'] + '<|im_end|>' + '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""

# Dates, tools as indented JSON in the first user turn, one call a turn.
LLAMA3 = """\
{{- bos_token }}
{%- if not today is defined %}
    {%- set today = strftime_now("%d %b %Y") if strftime_now is defined else "1 Jan 2024" %}
{%- endif %}
{%- set system = "" %}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nDate: " + today + "\\n" + system + "<|eot_id|>" }}
{%- for turn in messages %}
    {%- if 'tool_calls' in turn %}
        {%- if turn.tool_calls | length != 1 %}{{- raise_exception("one call a turn, please") }}{%- endif %}
        {%- set call = turn.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' ~ call.name ~ '", "parameters": ' }}
        {{- call.arguments | tojson }}{{- "}<|eot_id|>" }}
    {%- elif turn.role in ("tool", "ipython") %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if turn.content is mapping or (turn.content is iterable and turn.content is not string) %}
            {{- turn.content | tojson }}
        {%- else %}
            {{- turn.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + turn.role + '<|end_header_id|>\\n\\n' }}
        {%- if tools and loop.first %}
            {{- "Functions:\\n" }}
            {%- for tool in tools %}{{- tool | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
        {%- endif %}
        {{- turn['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

# Tools in the system turn, thoughts kept only after the last question, a switch for thinking.
QWEN = """\
{%- set opening = messages[0].content if messages[0].role == 'system' else 'Be helpful.' %}
{{- '<|im_start|>system\\n' + opening }}
{%- if tools %}
    {{- '\\n\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' ~ tool | tojson }}{%- endfor %}
    {{- '\\n</tools>' }}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- set seen = namespace(question=messages | length - 1, looking=true) %}
{%- for turn in messages[::-1] %}
    {%- if seen.looking and turn.role == 'user' and not turn.content.startswith('<tool_response>') %}
        {%- set seen.looking = false %}
        {%- set seen.question = messages | length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for turn in messages %}
    {%- if turn.role == 'user' or (turn.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + turn.role + '\\n' + turn.content + '<|im_end|>\\n' }}
    {%- elif turn.role == 'assistant' %}
        {%- set said, thought = turn.content or '', turn.reasoning_content or '' %}
        {%- if not thought and '</think>' in said %}
            {%- set thought = said.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set said = said.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > seen.question and (loop.last or thought) %}
            {{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- said }}
        {%- for call in turn.tool_calls or [] %}
            {%- set call = call.function or call %}
            {{- '\\n<tool_call>\\n{"name": "' ~ call.name ~ '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif turn.role == 'tool' %}
        {%- if loop.first or loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + turn.content + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

# No system role of its own, strict turns, text or parts.
GEMMA = """\
{{ bos_token }}
{%- set turns = messages -%}
{%- set lead = '' -%}
{%- if messages[0]['role'] == 'system' -%}
    {%- set lead = messages[0]['content'] -%}
    {%- set lead = (lead if lead is string else lead[0]['text']) + '\\n\\n' -%}
    {%- set turns = messages[1:] -%}
{%- endif -%}
{%- for turn in turns -%}
    {%- if (turn['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('turns go user, assistant, user, assistant') }}
    {%- endif -%}
    {{ '<start_of_turn>' + ('model' if turn['role'] == 'assistant' else turn['role']) + '\\n' }}
    {{- lead if loop.first else '' }}
    {%- if turn['content'] is string -%}
        {{ turn['content'] | trim }}
    {%- else -%}
        {%- for part in turn['content'] -%}
            {{ '<start_of_image>' if part['type'] == 'image' else part['text'] | trim }}
        {%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""

# Tools before the last question, calls with identifiers of nine characters, the system text in the last question.
MISTRAL = """\
{%- set system = messages[0]["content"] if messages[0]["role"] == "system" %}
{%- set turns = messages[1:] if messages[0]["role"] == "system" else messages %}
{%- set questions = turns | selectattr("role", "equalto", "user") | list %}
{%- set count = namespace(n=0) %}
{%- for turn in turns if turn.role != "tool" and not turn.tool_calls %}
    {%- if (turn.role == "user") != (count.n % 2 == 0) %}{{- raise_exception("turns must alternate") }}{%- endif %}
    {%- set count.n = count.n + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for turn in turns %}
    {%- if turn.role == "user" %}
        {%- if tools is not none and turn == questions[-1] %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, value in tool.function.items() if key != "return" %}
                    {{- '"' + key + '": ' + value | tojson }}{{- ", " if not loop.last }}
                {%- endfor %}
                {{- "}}" }}{{- ", " if not loop.last }}
            {%- endfor %}
            {{- "][/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {{- "[INST] " + (system + "\\n\\n" if loop.last and system else "") + turn["content"] + "[/INST]" }}
    {%- elif turn.tool_calls is defined and turn.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for call in turn.tool_calls %}
            {%- if call.id is undefined or call.id | length != 9 %}
                {{- raise_exception("call ids have 9 characters") }}
            {%- endif %}
            {{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' }}{{- ", " if not loop.last }}
        {%- endfor %}
        {{- "]" + eos_token }}
    {%- elif turn.role == "assistant" %}
        {{- " " + turn["content"] | trim + eos_token }}
    {%- elif turn.role == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + turn.content | string }}
        {{- ', "call_id": "' + turn.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("unknown role " ~ turn.role) }}
    {%- endif %}
{%- endfor %}
"""

# Thoughts dropped from history, arguments as text, the reasoning opened by the prompt.
DEEPSEEK = """\
{%- set all = namespace(system='', after_tool=false) %}
{%- for turn in messages if turn['role'] == 'system' %}{% set all.system = all.system ~ turn['content'] %}{% endfor %}
{{- bos_token ~ all.system }}
{%- for turn in messages %}
{%- if turn['role'] == 'user' %}{% set all.after_tool = false %}{{ '<｜User｜>' + turn['content'] }}
{%- elif turn['role'] == 'assistant' and turn['tool_calls'] %}{{ '<｜Assistant｜><｜tool▁calls▁begin｜>' }}
{%- for call in turn['tool_calls'] %}
{{- call['type'] + '<｜tool▁sep｜>' + call['function']['name'] + '\\n```json\\n' + call['function']['arguments'] + '\\n```' }}
{%- endfor %}{{ '<｜tool▁calls▁end｜>' }}
{%- elif turn['role'] == 'assistant' %}
{%- set said = turn['content'] %}
{%- if '</think>' in said %}{% set said = said.split('</think>')[-1] %}{% endif %}
{{- '<｜Assistant｜>' + said + '<｜end▁of▁sentence｜>' }}
{%- elif turn['role'] == 'tool' %}{% set all.after_tool = true %}
{{- '<｜tool▁output▁begin｜>' + turn['content'] + '<｜tool▁output▁end｜>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt and not all.after_tool %}{{ '<｜Assistant｜><think>\\n' }}{% endif %}
"""

PARTS_ONLY = """\
{% for turn in messages %}{{ '<|' ~ turn['role'] ~ '|>' }}{% for part in turn['content'] %}
{%- if part['type'] == 'text' %}{{ part['text'] }}{% elif part['type'] == 'image' %}{{ '<image>' }}{% endif %}
{%- endfor %}{{ '</s>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}
"""

# A bit of everything the engine offers.
MEDLEY = """\
{%- for turn in messages %}
{%- set prefix = '### ' ~ turn.role | capitalize ~ ':\\n' %}
{{ prefix }}
{%- if turn.role == 'assistant' %}{% generation %}{{ turn.content }}{{ eos_token }}{% endgeneration %}
{%- else %}{{ turn.content }}{% endif %}

{% endfor %}
{%- if documents %}{% for document in documents %}[{{ loop.index }}] {{ document.title }}: {{ document.text | upper }}
{% endfor %}{% endif %}
{%- macro dots(n) %}{% if n > 0 %}.{{ dots(n - 1) }}{% endif %}{% endmacro %}{{ dots(3) }}
{%- for key, value in (tools or [{}])[0].items() | sort %}
{{ key }}={{ value | tojson(indent=2, sort_keys=true) }}{{ ', ' if not loop.last }}
{%- if loop.index == 2 %}{% break %}{% endif %}
{%- endfor %}
{% set caught %}{{ messages | map(attribute='role') | unique | join('/') }}{% endset %}{{ caught ~ caught }}
{{ "%s|%05.1f" | format("x", 3.14159) }}{{ "{:>6}".format("ab") }}{{ [1, 2, 3] | map('string') | join('-') }}{{ 'a' * 3 }}
{{ 2 ** 10 }}{{ '<b>' | safe }}{{ {'ü': [1, none, true]} | tojson }}{{ none }}{{ missing }}{{ [1, 'x', {'y': 2}] }}
{%- filter upper %}shout{% endfilter %}{% with deep = {'a': (1, 2)} %}{{ deep.a[1] + 1 }}{% endwith %}
{%- for a in range(5) if a is odd %}{{ loop.length }}{{ loop.revindex }}{{ loop.cycle('x', 'y') }}{% else %}none{% endfor %}
{%- for item in [1, [2, [3]]] recursive %}{{ loop(item) if item is not number else item }}{% endfor %}
{{ 'a,b,c'.split(',') | reverse | list }}{{ 'x' if 3 in [1, 2, 3] and 'b' not in 'abc' else 'z' }}{{ dict(a=1).get('b', 7) }}
{{ "  indent\\nme" | trim | indent(3, true) }}{{ [3, 1, 2] | sort(reverse=true) | first }}{{ 'é' | length }}{{ '%d%%' % 5 }}
"""

# Tools and calls as elements named by keys, a switch that is cut out of what is said.
CODER = """\
{%- macro element(value) %}
    {%- if value is mapping %}
        {%- for key, below in value.items() %}{{- '\\n<' ~ key ~ '>' ~ element(below) ~ '</' ~ key ~ '>' }}{%- endfor %}
    {%- else %}{{- value | string }}{%- endif %}
{%- endmacro %}
{%- for turn in messages %}
    {{- '<|im_start|>' + turn.role + '\\n' }}
    {%- if loop.first and tools %}
        {%- for tool in tools %}{{- tool.function.name ~ element(tool.function.parameters) ~ tool.type }}{%- endfor %}
    {%- endif %}
    {{- (turn.content or '').replace('/no_think', '').replace('/think', '') }}
    {%- for call in turn.tool_calls or [] %}
        {{- '<function=' ~ call.function.name ~ '>' ~ element(call.function.arguments) ~ '</function>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' ~ ('<think>' if enable_thinking) }}{%- endif %}
"""

# Cases of letters changed, types and names of schemas written beside signs, descriptions trimmed.
SHOUTING = """\
{{- bos_token }}
{%- for tool in tools or [] %}
    {{- '<' ~ tool.function.name ~ '>' ~ tool.function.description | trim | lower ~ '<|tool|>' }}
    {%- for key, value in (tool.function.parameters or {}).items() %}{{- key | upper ~ value | string | lower }}{%- endfor %}
{%- endfor %}
{%- for turn in messages %}
    {{- '<|turn|>' ~ turn.role ~ '[' ~ (turn.name or '') ~ '] ' ~ (turn.content or '') | trim | lower }}
    {%- for call in turn.tool_calls or [] %}{{- '<|call|>' ~ call.type ~ call.function | tojson | lower }}{%- endfor %}
    {{- eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|turn|>assistant' }}{%- endif %}
"""

FAMILIES = {
    "chatml": CHATML,
    "llama3": LLAMA3,
    "qwen": QWEN,
    "gemma": GEMMA,
    "mistral": MISTRAL,
    "deepseek": DEEPSEEK,
    "parts-only": PARTS_ONLY,
    "medley": MEDLEY,
}
