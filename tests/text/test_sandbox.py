"""Hostile templates: nothing can be reached, and nothing runs for long or grows large."""

import gc
import time
import tracemalloc
from collections.abc import Callable

import pytest

from penstock.errors import ModelFileError, RequestError
from penstock.runtime.text.template.chat import ChatTemplate
from tests.text.templates import FAMILIES

MESSAGES = [{"role": "user", "content": "hello"}]
MAX_LOOPS = 20
"""As long as so many loops of a million turns: the same on a slow machine and on a fast one."""
MAX_BYTES = 64 << 20

ESCAPES = [
    "{{ ''.__class__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__']['__mro__'] }}",
    "{{ ''|attr('__class__') }}",
    "{{ ''|attr('\\x5f\\x5fclass\\x5f\\x5f') }}",
    "{{ [].__class__.__base__.__subclasses__() }}",
    "{{ {}.__class__.__init__.__globals__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__['__builtins__'] }}",
    "{{ lipsum.__globals__ }}",
    "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "{{ range.__self__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__globals__ }}",
    "{{ dict.__class__ }}",
    "{{ dict.fromkeys.__func__.__globals__ }}",
    "{{ messages.__class__ }}",
    "{{ messages[0].__class__.__name__ }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'x'}) }}",
    "{{ messages[0].clear() }}",
    "{{ messages.pop() }}",
    "{{ '{0.__class__}'.format('') }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ '{a.__class__}'.format_map({'a': ''}) }}",
    "{{ '{}'.format.__self__ }}",
    "{{ ''|attr('format')('{0.__class__}') }}",
    "{{ '%s'|format(''.__class__) }}",
    "{{ ['__class__']|map('attr')|list }}",
    "{{ ['']|map(attribute='__class__')|list|string }}",
    "{{ ['']|map('attr', '__class__')|list|string }}",
    "{% set ns = namespace(__class__=1) %}{{ ns }}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns }}",
    "{% for x in ().__class__.__base__.__subclasses__() %}{{ x }}{% endfor %}",
    "{% macro m() %}{% endmacro %}{{ m.__globals__ }}{{ m._func }}",
    "{% macro m() %}{% endmacro %}{{ m._environment.globals }}",
    "{{ loop.__class__ }}{% for x in [1] %}{{ loop._iterator }}{% endfor %}",
    "{% for x in [1] %}{{ loop._recurse.__globals__ }}{% endfor %}",
    "{{ (1).to_bytes(10, 'big') }}",
    "{{ 'x'.encode() }}",
    "{{ 'x'.translate({}) }}",
    "{{ messages.__getitem__(0) }}",
    "{{ messages.__len__() }}",
    "{{ range(3).index(1) }}",
    "{% include 'x' %}",
    "{% import 'os' as os %}{{ os }}",
    "{% from 'os' import path %}{{ path }}",
    "{% extends 'base' %}",
    "{% autoescape true %}{{ '<' }}{% endautoescape %}",
    "{{ get_flashed_messages.__globals__ }}{{ config.items() }}{{ request.application }}",
    "{{ g.pop.__globals__.__builtins__ }}",
    "{{ url_for.__globals__ }}",
    "{{ 1|random }}{{ 'x'|pprint }}{{ 'x'|xmlattr }}",
    "{{ context }}{{ environment.globals }}",
    "{{ caller() }}",
    "{{ (messages|groupby('role'))[0].__class__ }}",
    "{% set x = messages|map('nonexistent')|list %}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_nothing_can_be_reached(source: str) -> None:
    """The template is refused, or what it asks for is not there."""
    try:
        shown = ChatTemplate(source).render(MESSAGES)
    except (RequestError, ModelFileError) as error:
        shown = str(error)
        assert "<" not in shown
    else:
        assert shown == ""


GROW = "{% set ns = namespace(s='aaaaaaaa', l=[1], t=(1,), d={}) %}{% for i in range(9999) %}"
LAUGHS = "{% set x = [1] %}{% set y = [1] %}" + "{% set x = [x, x] %}{% set y = [y, y] %}" * 60
HASHABLE_LAUGHS = "{% set x = (1,) %}" + "{% set x = (x, x) %}" * 60

BOMBS = {
    "range": "{% for i in range(10**9) %}{% endfor %}",
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "deep loops": "".join(f"{{% for a{i} in range(99) %}}" for i in range(15)) + "{% endfor %}" * 15,
    "filtered loops": "{% for a in range(99999) %}{% for b in range(99999) if b < 0 %}{% endfor %}{% endfor %}",
    "repeat": "{{ 'a' * 10**9 }}",
    "repeat left": "{{ 10**9 * 'a' }}",
    "repeat list": "{{ ([1] * 10**9)|length }}",
    "power": "{{ 10**(10**8) }}",
    "power tower": "{% set x = 9 %}{% for i in range(99) %}{% set x = 9 ** 9 %}{{ x ** x ** x }}{% endfor %}",
    "squares": GROW + "{% set ns.n = (ns.n or 3) * (ns.n or 3) %}{% endfor %}{{ ns.n }}",
    "doubling +": GROW + "{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "doubling ~": GROW + "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "doubling capture": "{% set x = 'aaaaaaaa' %}"
    + "{% set x %}{{ x }}{{ x }}{{ x }}{{ x }}{{ x }}{{ x }}{{ x }}{{ x }}{% endset %}" * 30,
    "doubling join": GROW + "{% set ns.s = [ns.s, ns.s]|join %}{% endfor %}",
    "doubling str.join": GROW + "{% set ns.s = ns.s.join([ns.s, ns.s]) %}{% endfor %}",
    "doubling list": GROW + "{% set ns.l = ns.l + ns.l %}{% endfor %}",
    "doubling replace": GROW + "{% set ns.s = ns.s.replace('a', 'aa') %}{% endfor %}",
    "doubling filter replace": GROW + "{% set ns.s = ns.s|replace('a', 'aa') %}{% endfor %}",
    "doubling format": GROW + "{% set ns.s = '%s%s' % (ns.s, ns.s) %}{% endfor %}",
    "doubling str.format": GROW + "{% set ns.s = '{0}{0}'.format(ns.s) %}{% endfor %}",
    "doubling filter format": GROW + "{% set ns.s = '%s%s'|format(ns.s, ns.s) %}{% endfor %}",
    "doubling macro": "{% macro d(x) %}{{ x }}{{ x }}{% endmacro %}" + GROW + "{% set ns.s = d(ns.s) %}{% endfor %}",
    "doubling filter block": GROW
    + "{% set ns.s %}{% filter upper %}{{ ns.s }}{{ ns.s }}{% endfilter %}{% endset %}{% endfor %}",
    "doubling tojson": GROW + "{% set ns.s = [ns.s, ns.s]|tojson %}{% endfor %}",
    "doubling string": GROW + "{% set ns.s = [ns.s, ns.s]|string %}{% endfor %}",
    "doubling escape": GROW + "{% set ns.s = (ns.s ~ '&')|e|string %}{% endfor %}",
    "doubling urlencode": GROW + "{% set ns.s = (ns.s ~ '%')|urlencode %}{% endfor %}",
    "laughs printed": GROW + "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
    "laughs as json": LAUGHS + "{{ x|tojson }}",
    "laughs as text": LAUGHS + "{{ x|string }}",
    "laughs joined": LAUGHS + "{{ x ~ '' }}",
    "laughs compared": LAUGHS + "{{ x == y }}",
    "laughs ordered": LAUGHS + "{{ x < y }}",
    "laughs found": LAUGHS + "{{ x in [y] }}",
    "laughs tested": LAUGHS + "{{ x is eq y }}",
    "laughs hashed": HASHABLE_LAUGHS + "{{ {}[x] }}",
    "laughs as key": HASHABLE_LAUGHS + "{{ {x: 1} }}",
    "laughs got": HASHABLE_LAUGHS + "{{ {}.get(x) }}",
    "laughs unique": HASHABLE_LAUGHS + "{{ [x, x]|unique|list }}",
    "laughs sorted": LAUGHS + "{{ [x, y]|sort }}",
    "laughs counted": LAUGHS + "{{ [x].count(y) }}",
    "laughs selected": LAUGHS
    + "{{ [x]|select('equalto', y)|list }}",
    "deep value": GROW + "{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
    "recursive macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "mutual macros": "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
    "branching macro": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "recursive loop": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "branching loop": "{% for x in range(9) recursive %}{{ loop(range(9)) }}{% endfor %}",
    "call block": "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + "{% call m() %}" * 15 + "x" * 100 + "{% endcall %}" * 15,
    "wide format": "{{ '%1000000000d' % 1 }}",
    "wide format from arguments": "{{ '%*d' % (1000000000, 1) }}",
    "precise format": "{{ '%.1000000000f' % 1.0 }}",
    "wide str.format": "{{ '{:>1000000000}'.format(1) }}",
    "nested str.format": "{{ '{:>{w}}'.format(1, w=1000000000) }}",
    "wide filter format": "{{ '%1000000000d'|format(1) }}",
    "ljust": "{{ 'a'.ljust(10**9) }}",
    "zfill": "{{ 'a'.zfill(10**9) }}",
    "center": "{{ 'a'.center(10**9) }}",
    "filter center": "{{ 'a'|center(10**9) }}",
    "expandtabs": "{{ ('\t' * 1000).expandtabs(10**9) }}",
    "indent": "{{ ('a\n' * 1000)|indent(10**9) }}",
    "indent by text": "{{ ('a\n' * 9999)|indent('x' * 9999) }}",
    "json indent": "{{ [[[1]]]|tojson(indent=10**9) }}",
    "json separators": "{{ (range(9999)|list)|tojson(separators=['x' * 9999, ':']) }}",
    "batch": "{{ [1]|batch(10**9, 'x')|list|length }}",
    "slice": "{{ [1]|slice(10**9)|list|length }}",
    "round": "{{ 1.5|round(10**9, 'ceil') }}",
    "join by text": "{{ range(9999)|join('x' * 9999) }}",
    "replace empty": "{{ ('a' * 9999).replace('', 'x' * 9999) }}",
    "split": "{{ ('aa ' * 500000).split(' ')|length }}",
    "split blanks": "{{ ('aa ' * 500000).split()|length }}",
    "splitlines": "{{ ('aa\n' * 500000).splitlines()|length }}",
    "list of characters": "{{ ('aé' * 200000)|list|length }}",
    "sum of lists": "{% set l = [] %}{{ (range(99999)|map('string')|batch(1)|sum(start=[]))|length }}",
    "sort long texts": "{{ ([('a' * 99999)] * 9999)|sort|length }}",
    "map upper": "{{ ([('a' * 99999)] * 9999)|map('upper')|list|length }}",
    "map map map": "{{ range(99999)|map('string')|map('upper')|map('lower')|map('title')|list|length }}"
    * 30,
    "long conditions": "{% for i in range(99999) %}{% if " + "x and " * 5000 + "x %}{% endif %}{% endfor %}",
    "long text": "{% for i in range(99999) %}" + "x" * 100_000 + "{% endfor %}",
    "long list": "{% for i in range(99999) %}{% set x = [" + "1," * 9000 + "] %}{% endfor %}",
    "many mappings": "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}"
    + "{% set ns.l = [ns.l, [" + "{'a': {}}, " * 500 + "]] %}{% endfor %}",
    "slices": "{% set x = range(99999)|list %}{% for i in range(99999) %}{% set y = x[:] %}{% endfor %}",
    "spread": "{% macro m() %}{{ varargs|length }}{% endmacro %}{% for i in range(9999) %}{{ m(*range(99999)) }}{% endfor %}",
    "dict of range": "{% for i in range(9999) %}{% set d = dict.fromkeys(range(99999)) %}{% endfor %}",
    "cycler": "{% for i in range(9999) %}{% set c = cycler(*range(99999)) %}{% endfor %}",
    "date format": "{{ strftime_now('%1000000000d') }}",
    "long refusal": "{{ raise_exception('a' * 10**9) }}",
    "groups": "{% for i in range(9999) %}{% set x = range(99999)|groupby('real')|list %}{% endfor %}",
    "changed": LAUGHS + "{% for i in range(2) %}{{ loop.changed(x if loop.first else y) }}{% endfor %}",
    "dict of keys": HASHABLE_LAUGHS + "{{ dict([(x, 1)]) }}",
    "views": LAUGHS + "{{ {'a': x}.items() }}",
    "views compared": LAUGHS + "{{ {'a': x}.items() == {'a': y}.items() }}",
    "namespace": LAUGHS + "{% for i in range(9999) %}{% set ns = namespace(a=x) %}{{ ns ~ ns }}{{ x == y }}{% endfor %}",
    "found in range": "{% for i in range(9999) %}{{ 'x' in range(99999) }}{% endfor %}",
    "division": "{% set x = 7 ** 300 %}{% for i in range(99999) %}{% set y = (x * x) // (x + i) %}{% endfor %}",
    "search from the right": "{% set h = 'a' * 900000 %}{{ h.rfind('b' + h[:400000]) }}",
    "split from the right": "{% set h = 'a' * 900000 %}{{ h.rsplit('b' + h[:400000])|length }}",
    "strip": "{% set h = 'a' * 900000 %}{{ h.strip('b' * 400000 + 'a') }}",
    "trim": "{% set h = 'a' * 900000 %}{{ h|trim('b' * 400000 + 'a') }}",
    "mapping format": "{{ ('%(a)s' * 99999) % {'a': 'x' * 9999} }}",
    "mapping filter format": "{{ ('%(a)s' * 99999)|format(a='x' * 9999) }}",
    "many fields": "{{ ('{}' * 400000).format('x') }}",
    "long path": "{{ range(9999)|map(attribute='real.' * 9999 ~ 'real')|list|length }}",
    "long sort path": "{{ range(9999)|sort(attribute='real.' * 9999 ~ 'real')|length }}",
    "long select path": "{{ range(9999)|selectattr('real.' * 9999 ~ 'real')|list|length }}",
    "titles": "{{ ('a ' * 400000)|title|length }}",
    "words": "{{ ('a ' * 400000)|wordcount }}",
    "in text": "{% set h = 'a' * 99999 %}{% for i in range(99999) %}{{ 'b' in h }}{% endfor %}",
}  # fmt: skip


def stopped(source: str) -> str:
    with pytest.raises((RequestError, ModelFileError)) as caught:
        ChatTemplate(source).render(MESSAGES)
    return str(caught.value)


def loops(work: Callable[[], object]) -> float:
    """How many loops of a million turns the work takes, of this thread alone: neither a busy machine nor a collection
    of what other tests left behind counts. The least of nine, or the first that is short enough: processors change their
    pace between work and loop, and new memory costs what its pages cost at that moment."""
    gc.disable()
    try:
        tries = [_loops(work)]
        while tries[-1] >= MAX_LOOPS and len(tries) < 9:
            tries.append(_loops(work))
        return min(tries)
    finally:
        gc.enable()


def _loops(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    worked = time.thread_time()
    for _ in range(1_000_000):
        pass
    return (worked - began) / (time.thread_time() - worked)


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_stopped_in_time(name: str) -> None:
    message = stopped(BOMBS[name])
    assert loops(lambda: stopped(BOMBS[name])) < MAX_LOOPS
    assert len(message) < 3000


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_stopped_in_memory(name: str) -> None:
    tracemalloc.start()
    try:
        stopped(BOMBS[name])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MAX_BYTES


BROKEN = {
    "unclosed": "{% for x in y %}",
    "nonsense": "{{ ",
    "unknown tag": "{% frobnicate %}",
    "unknown filter": "{{ x|frobnicate }}",
    "deep brackets": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "deep lists": "{{ " + "[" * 5000 + "]" * 5000 + " }}",
    "deep branches": "{% if x %}" * 3000 + "{% endif %}" * 3000,
    "many loops deep": "{% for x in y %}" * 60 + "{% endfor %}" * 60,
    "long sum": "{{ " + "1+" * 5000 + "1 }}",
    "long not": "{{ " + "not " * 5000 + "1 }}",
    "too long": "x" * (1 << 19),
    "too many parts": "{{ x }}" * 60_000,
    "bad escape": "{{ '\\N{nonsense}' }}",
}


@pytest.mark.parametrize("name", BROKEN)
def test_templates_that_do_not_compile_are_the_models_fault(name: str) -> None:
    def compiled() -> None:
        with pytest.raises(ModelFileError):
            ChatTemplate(BROKEN[name])

    assert loops(compiled) < 3 * MAX_LOOPS


def test_compiling_the_largest_template_is_quick() -> None:
    assert loops(lambda: ChatTemplate("{{ x + y ~ z }}{% if a == b %}{{ c }}{% endif %}" * 750)) < 5 * MAX_LOOPS


def test_a_stopped_rendering_harms_no_other() -> None:
    template = ChatTemplate("{% for m in messages %}{% for i in range(m.content|int) %}.{% endfor %}{% endfor %}")
    good = [{"role": "user", "content": "3"}]
    assert template.render(good) == "..."
    many = [{"role": "user", "content": "500"} for _ in range(100)]
    assert len(template.render(many)) == 100 * 500, "a longer conversation has a larger budget"
    endless = ChatTemplate(
        "{% for m in messages %}{% for i in range(99999) %}{% for j in range(99) %}.{% endfor %}{% endfor %}{% endfor %}"
    )
    with pytest.raises(RequestError, match="too many steps"):
        endless.render(good)
    assert template.render(good) == "..."


@pytest.mark.parametrize("family", FAMILIES)
def test_a_template_in_a_hostile_conversation(family: str) -> None:
    """What clients put into messages is data: template syntax in it is shown, not run."""
    content = "{{ ''.__class__ }}{% for i in range(10**9) %}x{% endfor %}"
    template = ChatTemplate(FAMILIES[family], special_tokens={"bos_token": "<s>", "eos_token": "</s>"})
    assert content in template.render([{"role": "user", "content": content}])
