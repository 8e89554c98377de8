"""Whatever is drawn under a grammar's masks belongs to its language; what cannot be used is refused by name."""

import json
import random
import re

import jsonschema
import pytest

from penstock.errors import RequestError
from penstock.runtime.files import open_files
from penstock.runtime.text.grammar import compiler as module
from penstock.runtime.text.grammar.compiler import GrammarCompiler
from penstock.runtime.text.grammar.kinds import KINDS
from penstock.runtime.text.grammar.vocabulary import whole_vocabulary
from tests.real import DEFAULT, GEMMA, RANDOM_LLAMA, model_path
from tests.text.grammar.schemas import make_schema
from tests.text.grammar.walk import allowed, compiler, tokenizer, write

CHECKER = jsonschema.Draft202012Validator.FORMAT_CHECKER
PERSON = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)


def holds_to(schema: dict[str, object], seed: int) -> bool:
    """Write a text under a schema; False if it did not end. Everything that ends is an instance."""
    try:
        matcher = compiler().compile("json_schema", json.dumps(schema))
    except RequestError:
        return False
    drawn = write(matcher, seed)
    if drawn is None:
        return False
    value = json.loads(tokenizer().decode(drawn))
    jsonschema.Draft202012Validator(schema, format_checker=CHECKER).validate(value)
    return True


def test_what_is_written_under_a_schema_is_an_instance_of_it() -> None:
    assert sum(holds_to(make_schema(seed), seed) for seed in range(8)) > 5


@pytest.mark.parametrize("model", [DEFAULT, RANDOM_LLAMA, GEMMA])
def test_tokens_of_a_forced_text_are_that_text_and_no_more(model: str) -> None:
    """Vocabularies that put a space before every text are no exception."""
    words = open_files(str(model_path(model))).tokenizer
    grammars = GrammarCompiler(lambda: whole_vocabulary(words, words.vocab_size))
    for text in ("}", '{"name": "', "x", " x", "é", "日本", "a\n\nb", "0"):
        forced = grammars.compile("choice", json.dumps([text])).forced()
        assert b"".join(map(words.token_bytes, forced)) == text.encode()


@pytest.mark.slow
def test_a_thousand_schemas() -> None:
    assert sum(holds_to(make_schema(seed), seed) for seed in range(1000, 2000)) > 700


@pytest.mark.parametrize(
    ("kind", "source", "pattern"),
    [
        ("regex", r"[A-Z]{3}-\d{2,4}", r"[A-Z]{3}-\d{2,4}"),
        ("regex", r"^(yes|no)$", "yes|no"),
        ("choice", '["red", "green", "a \\"quoted\\" one", "ünï"]', 'red|green|a "quoted" one|ünï'),
        ("lark", 'start: "a" ("b" | "c")+', "a[bc]+"),
        ("gbnf", 'root ::= "x" [0-9]+ ("," [0-9]+)*', r"x\d+(,\d+)*"),
        ("json_object", "", r"\{.*\}"),
    ],
)
def test_what_is_written_under_a_grammar_belongs_to_it(kind: str, source: str, pattern: str) -> None:
    for seed in range(1 if kind == "json_object" else 3):
        drawn = write(compiler().compile(kind, source), seed)
        if drawn is not None:
            assert re.fullmatch(pattern, tokenizer().decode(drawn), re.DOTALL), seed


COUNTED = 'start: head tail\nhead[max_tokens=3]: TEXT\nTEXT: /[a-z ]*/\ntail: "END"'


@pytest.mark.parametrize(
    ("kind", "source", "written"),
    [("json_schema", PERSON, '{"name": "Ada", "age": 36}'), ("lark", COUNTED, "aEND")],
    ids=["schema", "counting"],
)
def test_a_mask_after_drafts_is_the_mask_after_their_tokens(kind: str, source: str, written: str) -> None:
    matcher = compiler().compile(kind, source)
    text = tuple(tokenizer().encode(written, special=False))
    rows = allowed(matcher, text)
    assert rows[0] == allowed(matcher)[0], "a matcher stands where it stood"
    for count, token in enumerate(text):
        assert token in rows[count]
        matcher.advance((token,))
        assert rows[count + 1] == allowed(matcher)[0]
    assert matcher.is_over
    assert set(rows[-1]) == tokenizer().eos_ids


def test_rows_after_a_draft_that_may_not_be_drawn_are_empty() -> None:
    matcher = compiler().compile("choice", '["abc"]')
    (wrong,) = tokenizer().encode("x", special=False)
    assert allowed(matcher, (wrong,))[1] == []


def test_forced_tokens_are_the_only_way_on() -> None:
    matcher = compiler().compile("json_schema", json.dumps({"const": {"a rather long key": "and a long value"}}))
    written: list[int] = []
    while not matcher.is_over:
        forced = matcher.forced()
        rows = allowed(matcher, forced)
        written += forced or rows[0][:1]
        for token, row in zip(forced, rows):
            assert token in row
        matcher.advance(forced or rows[0][:1])
    assert json.loads(tokenizer().decode(written)) == {"a rather long key": "and a long value"}


def test_a_fork_goes_on_by_itself() -> None:
    matcher = compiler().compile("regex", "a*b")
    fork = matcher.fork()
    fork.advance(tokenizer().encode("b", special=False))
    assert fork.is_over
    assert not matcher.is_over


def test_a_token_that_may_not_come_is_a_fault_of_this_matcher_alone() -> None:
    matcher, other = compiler().compile("regex", "a*b"), compiler().compile("regex", "a*b")
    matcher.advance(tokenizer().encode("x", special=False))
    assert matcher.fault
    assert allowed(matcher)[0] == []
    assert not other.fault


def test_blanks_in_json_are_bounded() -> None:
    matcher = compiler().compile("json_schema", PERSON)
    words = tokenizer()
    blanks = {i for i in range(words.vocab_size) if words.token_bytes(i) and not words.token_bytes(i).strip()}
    matcher.advance(words.encode("{", special=False))
    source = random.Random(1)
    for _ in range(30):
        choices = sorted(blanks.intersection(allowed(matcher)[0]))
        if not choices:
            break
        matcher.advance((source.choice(choices),))
    assert not blanks.intersection(allowed(matcher)[0])
    assert not matcher.fault


HOSTILE = {
    "no JSON": ("json_schema", "{"),
    "no schema": ("json_schema", "[1]"),
    "a type that is none": ("json_schema", '{"type": "bogus"}'),
    "a bad pattern": ("json_schema", '{"type": "string", "pattern": "("}'),
    "itself": ("json_schema", '{"$ref": "#"}'),
    "a circle": ("json_schema", '{"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}'),
    "elsewhere": ("json_schema", '{"$ref": "http://127.0.0.1:9/x.json"}'),
    "file": ("json_schema", '{"$ref": "file:///etc/passwd"}'),
    "sixty thousand deep": ("json_schema", '{"items":' * 60_000 + "{}" + "}" * 60_000),
    "a hundred deep": ("json_schema", '{"items":' * 200 + "{}" + "}" * 200),
    "hundred thousand values": ("json_schema", json.dumps({"enum": list(range(100_000))})),
    "many properties": ("json_schema", json.dumps({"properties": {f"p{i}": {} for i in range(5000)}})),
    "empty": ("json_schema", '{"enum": []}'),
    "cannot be": ("json_schema", '{"type": "integer", "minimum": 3, "maximum": 1}'),
    "a huge number": ("json_schema", '{"maximum": ' + "9" * 5000 + "}"),
    "expanding": (
        "json_schema",
        json.dumps({"allOf": [{"anyOf": [{"minimum": i}, {"maxLength": i}]} for i in range(40)]}),
    ),
    "nested repeats": ("regex", "((x{100}){100}){100}"),
    "look-ahead": ("regex", "(?=a)b"),
    "back reference": ("regex", r"(a)\1"),
    "deep groups": ("regex", "(" * 5000 + "a" + ")" * 5000),
    "unclosed": ("regex", "[a"),
    "too long": ("regex", "a" * 300_000),
    "no choice": ("choice", "[]"),
    "choices that are no texts": ("choice", "[1]"),
    "an unknown rule": ("lark", "start: nobody"),
    "an endless rule": ("lark", "start: a\na: b\nb: a"),
    "an unknown token": ("lark", "start: <|no_such_token|>"),
    "an unknown GBNF rule": ("gbnf", "root ::= nobody"),
    "deep GBNF": ("gbnf", "root ::= " + "(" * 5000 + '"a"' + ")" * 5000),
    "an unknown kind": ("prolog", "a :- b."),
    "lone surrogate": ("regex", "\ud800"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_used_is_refused_alike_with_few_tokens_and_with_all(name: str) -> None:
    kind, source = HOSTILE[name]
    messages = []
    for each in (GrammarCompiler.for_checks(tokenizer()), compiler()):
        with pytest.raises(RequestError) as refusal:
            each.compile(kind, source)
        messages.append(str(refusal.value))
        assert len(messages[-1]) < 400
    assert messages[0] == messages[1]


@pytest.mark.parametrize("keyword", ["not", "uniqueItems", "contains", "dependentRequired"])
def test_a_refusal_names_the_keyword_and_lenience_passes_over_it(keyword: str) -> None:
    schema = json.dumps({"type": "array", keyword: {"type": "null"} if keyword != "uniqueItems" else True})
    with pytest.raises(RequestError, match=keyword):
        compiler().compile("json_schema", schema)
    compiler().compile("json_schema_lenient", schema)


@pytest.mark.parametrize(
    "expression", ["(a+)+$", "(a|a)*b", "(.*)*", "(a?){100}a{100}", "(.*a){20}", "(a|b)*a(a|b){25}"]
)
def test_expressions_that_ruin_backtracking_are_followed(expression: str) -> None:
    matcher = compiler().compile("regex", expression)
    matcher.advance(tokenizer().encode("a" * 60, special=False))
    assert not matcher.fault


def test_a_bounded_number_is_kept_and_kept_ones_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 3)
    own = GrammarCompiler.for_checks(tokenizer())
    for number in (1, 2, 3, 4, 4, 2, 1):
        own.compile("regex", f"a{{{number}}}")
    assert (own.num_hits, own.num_misses) == (2, 5)


def test_every_kind_takes_something() -> None:
    sources = {
        "json_schema": "{}",
        "json_schema_lenient": "{}",
        "choice": '["a"]',
        "lark": 'start: "a"',
        "composed": 'start: "a"',
        "gbnf": 'root ::= "a"',
    }
    for kind in KINDS:
        compiler().compile(kind, sources.get(kind, "a"))
