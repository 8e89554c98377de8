"""Laws of flags: what a field may be, and which values it takes."""

import math
import re
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import pytest

from penstock import config as engine_configs
from penstock.cli import serve
from penstock.cli.main import COMMANDS
from penstock.cli.talk import generate
from penstock.console.args import arguments_of, build, parse
from penstock.console.flags import by_tables, flags_of
from penstock.console.help import command_help
from penstock.errors import ConfigError
from penstock.fields import Bounds, label_of
from penstock.service import config as service_configs
from penstock.service.server.ui.flags import COMMANDS as PAGE_FLAGS
from penstock.service.server.ui.flags import words_of
from tests.cli import orchard

ROOT = Path(__file__).parents[2]
TEXTS = {
    "penstock": {".py", ".cpp", ".cu", ".h"},
    "docs": {".md", ".py"},
    "web/src": {".ts", ".tsx"},
    "deploy": {".yaml", ".yml", ".toml", ".tpl", ".cpu", ".cuda"},
}
"""Where people read how a setting is written, by the kinds of files there."""
MOST_FLAGS = 150
"""Distinct ones over all commands. A new flag replaces one, or is a setting."""
ALL_CONFIGS = [
    value
    for module in (engine_configs, service_configs)
    for value in vars(module).values()
    if isinstance(value, type) and is_dataclass(value)
] + [
    orchard.Config,
    *(import_module(command.module).Config for command in COMMANDS.values()),
]


def leaf_names(config: type) -> list[str]:
    names = []
    for declared in fields(config):
        hint = get_type_hints(config)[declared.name]
        names += leaf_names(hint) if is_dataclass(hint) else [declared.name]
    return names


@pytest.mark.parametrize("config", ALL_CONFIGS, ids=lambda config: f"{config.__module__}.{config.__name__}")
def test_every_leaf_of_every_config_is_one_flag(config: Any) -> None:
    assert [flag.name for flag in flags_of(config)] == leaf_names(config)
    assert config.__dataclass_params__.frozen


def test_the_outermost_fields_come_first_whatever_the_order_of_declaration() -> None:
    assert list(by_tables(flags_of(orchard.Config))) == [(), ("garden", "tree"), ("garden",)]


def test_the_default_of_an_inner_field_is_that_of_the_outer_default() -> None:
    defaults = {flag.name: flag.default for flag in flags_of(orchard.Config)}
    assert defaults["height_m"] == 3.0


def test_fields_that_no_command_line_could_say_are_refused_when_declared() -> None:
    @dataclass
    class Inner:
        twice: int = 0

    @dataclass
    class Twice:
        inner: Inner = field(default_factory=Inner)
        twice: int = 1

    for hint, declared in [
        (dict[str, int], field(default_factory=dict)),
        (tuple[int, str], field(default=(1, ""))),
        (int | str, field(default=1)),
        (int | None, field(default=3)),
        (bool | None, field(default=None)),
        (tuple[bool, ...], field(default=())),
        (tuple[int | None, ...], field(default=())),
        (Literal["a", 1], field(default="a")),
        (bool, field(default=True, metadata={"positional": True})),
        (tuple[str, ...], field(default=("a",), metadata={"positional": True})),
    ]:
        config = dataclass(
            type("Made", (), {"__annotations__": {"leaf": hint}, "leaf": declared, "__module__": __name__})
        )
        with pytest.raises(TypeError, match=r"Made\.leaf"):
            flags_of(config)
    for name in ("help", "config", "print_config", "no_cache"):
        config = dataclass(type("Made", (), {"__annotations__": {name: str}, name: "", "__module__": __name__}))
        with pytest.raises(TypeError, match="taken"):
            flags_of(config)
    with pytest.raises(TypeError, match="same name"):
        flags_of(Twice)


def test_only_the_last_positional_may_be_left_out() -> None:
    @dataclass
    class Gap:
        first: str = field(default="a", metadata={"positional": True})
        second: str = field(default="b", metadata={"positional": True})

    with pytest.raises(TypeError, match="last positional"):
        flags_of(Gap)


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("apples", "4k", "--apples takes a whole number, not '4k'; write it out, since k may mean 1000 or 1024"),
        ("apples", "2 MiB", "write it out"),
        ("apples", "1.5", "--apples takes a whole number, not '1.5'"),
        ("apples", "1e3", "a whole number"),
        ("apples", "nan", "a whole number"),
        ("apples", "", "a whole number"),
        ("apples", "9" * 5000, "a whole number"),
        ("height_m", "nan", "--height-m takes a finite number"),
        ("height_m", "-inf", "a finite number"),
        ("height_m", "1e999", "a finite number"),
        ("height_m", "tall", "a finite number, not 'tall'"),
        ("kind", "ruset", "--kind takes pippin, russet or codlin, not 'ruset'; did you mean russet?"),
        ("graft", "4", "--graft takes 1, 2 or 3, not '4'"),
        ("month", "", "--month takes august or september, not ''"),
        ("note", "caf\udce9", "--note takes text in UTF-8"),
        ("book", "caf\udce9", "--book takes a path in UTF-8"),
        ("picker", "caf\udce9", "PICKER takes text in UTF-8"),
    ],
)
def test_a_wrong_value_is_refused_with_the_flag_and_what_it_takes(name: str, text: str, fault: str) -> None:
    flag = {flag.name: flag for flag in flags_of(orchard.Config)}[name]
    with pytest.raises(ConfigError) as caught:
        flag.from_text(text)
    assert fault in str(caught.value)


def test_numbers_and_paths_read_as_python_writes_them() -> None:
    flags = {flag.name: flag for flag in flags_of(orchard.Config)}
    assert flags["apples"].from_text("-4_096") == -4096
    assert flags["height_m"].from_text("1e-3") == 0.001
    assert flags["graft"].from_text("3") == 3
    assert flags["book"].from_text("a/b") == Path("a/b")


def test_advanced_flags_and_settings_stand_last_in_help() -> None:
    for command in COMMANDS.values():
        config = getattr(import_module(command.module), "Config", None)
        if config is None:
            continue
        flags = flags_of(config)
        everyday, _, rest = command_help("penstock", config, 100).partition("\nsettings, written without dashes:")
        everyday, _, advanced = everyday.partition("\nadvanced, which few need:")
        for flag in flags:
            if not flag.is_positional:
                where = rest if flag.is_setting else advanced if flag.role == "advanced" else everyday
                row = f"{flag.key}=" if flag.is_setting else rf"--{flag.switch}\b"
                assert re.search(rf"^  {row}", where, re.MULTILINE), f"{flag.label} is not where it belongs"


def every_config() -> list[type]:
    """Of all commands, those of a table of members too."""
    found: list[type] = []
    for command in COMMANDS.values():
        module = import_module(command.module)
        found += [member.Config for member in getattr(module, "MEMBERS", {}).values()]
        found += [module.Config] if hasattr(module, "Config") else []
    return found


def test_a_name_is_a_flag_of_all_commands_or_of_none_and_there_are_not_too_many() -> None:
    leaves = [flag for config in every_config() for flag in flags_of(config) if not flag.is_positional]
    flags = {flag.key for flag in leaves if not flag.is_setting}
    assert flags.isdisjoint(flag.key for flag in leaves if flag.is_setting)
    assert len({flag.switch for flag in leaves if not flag.is_setting}) <= MOST_FLAGS


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (
            ["stall-s=2.5", "strict=true", "bench-target=http://a", "bench-target=http://b"],
            (2.5, True, ("http://a", "http://b")),
        ),
        (
            [
                "--max-sequences=4",
                "max-sequences=8",
                "stall-s=9",
                "stall-s=2.5",
                "bench-target=http://a",
                "bench-target=",
            ],
            (2.5, False, ()),
        ),
    ],
)
def test_a_setting_is_a_word_of_its_own_and_comes_back_as_one(words: list[str], found: tuple[Any, ...]) -> None:
    made = build(serve.Config, parse(serve.Config, words).values)
    server = made.server
    assert (server.stall_s, server.strict, server.bench_target) == found
    assert build(serve.Config, parse(serve.Config, arguments_of(made)).values) == made


def test_the_dashes_of_a_setting_are_refused_in_a_sentence_that_says_how_it_is_written() -> None:
    for words in (["--stall-s", "2"], ["--stall-s=2"], ["--no-strict"]):
        with pytest.raises(ConfigError, match=r"write (stall-s|strict)=VALUE"):
            parse(serve.Config, words)
    assert parse(serve.Config, ["--", "stall-s=2"]).values == {"model": "stall-s=2"}


@pytest.mark.parametrize(
    ("word", "fault"),
    [
        ("stal-s=5", "unknown setting stal-s; did you mean stall-s? (if it is no setting: -- stal-s=5)"),
        ("stall_s=5", "unknown setting stall_s; did you mean stall-s?"),
        ("max-sequenses=5", "unknown setting max-sequenses; did you mean --max-sequences?"),
        ("xyzzy=a b", "unknown setting xyzzy; see --help (if it is no setting: -- xyzzy=a b)"),
    ],
)
def test_a_setting_that_does_not_exist_is_no_model(word: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(serve.Config, [word])
    assert fault in str(caught.value)
    for given in ([f"./{word}"], ["--", word]):
        assert parse(serve.Config, given).values == {"model": given[-1]}


@pytest.mark.parametrize("text", ["n=3 is prime", "n=3", "seed=7", "model=x", "max-tokens=4", "bst-of=3", "--=", "é=1"])
def test_a_prompt_is_a_prompt_unless_it_is_a_setting(text: str) -> None:
    words = ["--", text] if text.startswith("-") else [text]
    assert parse(generate.Config, [*words]).values == {"prompts": (text,)}
    made = generate.Config(prompts=(text, "best-of=3"))
    assert build(generate.Config, parse(generate.Config, arguments_of(made)).values) == made
    assert parse(generate.Config, ["best-of=3", text] if words == [text] else ["best-of=3"]).values["best_of"] == 3


def test_a_number_out_of_its_bounds_is_refused_by_its_name_and_the_ends_are_taken() -> None:
    """Of every config of every command that can be made without words; whoever declares bounds holds to them."""
    seen = 0
    for owner in {flag.owner for config in every_config() for flag in flags_of(config)}:
        if any(one.default is MISSING and one.default_factory is MISSING for one in fields(owner)):
            continue
        for one in fields(owner):
            bounds: Bounds | None = one.metadata.get("bounds")
            if bounds is None:
                continue
            seen += 1
            is_whole = float not in (one.type, *get_args(one.type))
            low, high = bounds.least, bounds.most
            wrong = [low - 1 if low is not None else bounds.above, *([] if high is None else [2 * high + 1]), "1", True]
            for value in (*wrong, math.nan, math.inf):
                with pytest.raises(ConfigError, match=rf"^{label_of(one)} is .*; choose "):
                    owner(**{one.name: value})
            for value in {low, high} - {None}:
                assert bounds.allows(int(value) if is_whole else value, is_whole=is_whole)
    assert seen > 60


def test_no_text_gives_a_setting_dashes() -> None:
    """Of the package, the documents, the pages and the deployments. Scripts of benchmarks have flags of their own."""
    names = "|".join({flag.key for config in every_config() for flag in flags_of(config) if flag.is_setting})
    dashed = re.compile(rf"(?<![\w-])--(?:no-)?(?:{names})(?![\w-])")
    assert dashed.search("serve with --stall-s 5")
    texts = [path for folder, kinds in TEXTS.items() for path in (ROOT / folder).rglob("*") if path.suffix in kinds]
    assert len(texts) > 500
    for path in (ROOT / "README.md", *texts):
        lines = [line for line in path.read_text().splitlines() if not re.search(r"benchmarks[./]", line)]
        assert not [line for line in lines if dashed.search(line)], path


def test_the_pages_know_which_words_are_settings() -> None:
    """A command line that a page shows writes settings without dashes, and flags with them."""
    listed = (ROOT / "web/src/tools.ts").read_text().partition("const SETTINGS")[2].partition(";")[0]
    named = set(" ".join(re.findall(r'"([^"]+)"', listed)).split()) - {" "}
    assert len(named) > 20
    assert named <= {flag.key for config in every_config() for flag in flags_of(config) if flag.is_setting}


def test_what_a_page_sets_is_what_its_command_takes() -> None:
    names = {"simulate": "simulate", "plan": "plan", "bench": "bench", "profile": "profile step"}
    for command, rules in PAGE_FLAGS.items():
        config = import_module(COMMANDS[names[command]].module).Config
        assert set(rules) <= {flag.key for flag in flags_of(config)}
    words = words_of("simulate", {"rate": 3.5, "overlap": False, "model": "llama-3.1-8b", "kv": "fp8"})
    found = {"rate": 3.5, "overlap": False, "model": "llama-3.1-8b", "kv": "fp8"}
    assert parse(import_module(COMMANDS["simulate"].module).Config, words).values == found
