"""Who may import whom, and what no layer may touch. The tables are the architecture; docs/ARCHITECTURE.md shows them."""

import ast
import itertools
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "penstock"

ANYTHING = ("",)

LAYERS = ("runtime", "service", "tools")
"""The folders of `penstock/` that only group rooms. A room is named without its layer: `core`, `server`, `sim`."""

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "errors": (),
    "preload": (),
    "log": (),
    "lines": ("errors",),
    "fields": ("errors",),
    "marks": (),
    "webfiles": (),
    "kv_events": (),
    "amounts": (),
    "garbage": (),
    "core": ("errors",),
    "models": ("errors",),
    "config": ("errors", "fields"),
    "sizing": ("errors", "amounts", "config", "core", "models.spec"),
    "text": ("errors",),
    "formats": ("errors",),
    "metrics": ("errors", "fields", "core"),
    "workload": ("errors", "fields", "core"),
    "cost": ("errors", "fields", "core", "models.spec", "models.adapters", "models.ranks", "models.sharding"),
    "ops": ("errors", "preload", "models.spec", "models.kinds"),
    "layers": ("errors", "ops", "models.spec", "models.kinds"),
    "execution": (
        "errors", "preload", "garbage", "layers", "ops", "core.batch", "core.request", "core.runner", "config", "sizing",
        "formats", "models.spec", "models.kinds.cache", "models.weights", "models.ranks", "models.sharding",
        "models.adapters",
    ),
    "draft": ("errors", "core"),
    "train": ("errors", "core.batch", "core.request", "formats", "models.spec", "execution", "ops"),
    "engine": ("errors", "lines", "core", "config", "sizing", "metrics", "draft"),
    "server": (
        "edge", "errors", "log", "lines", "marks", "kv_events", "webfiles", "engine.client", "core.request", "core.batch",
        "core.prefix", "text", "metrics", "config", "store", "calculate", "advise", "doctor", "cost.hardware",
        "models.catalog",
    ),
    "edge": ("errors", "config"),
    "upstream": ("errors",),
    "router": (
        "errors", "lines", "edge", "upstream", "marks", "kv_events", "webfiles", "core", "metrics", "config", "gateway",
        "server.reading",
    ),
    "store": ("errors",),
    "cluster": ("errors", "fields", "upstream"),
    "gateway": ("errors", "edge.tokens", "marks", "metrics", "store"),
    "sim": (
        "errors", "fields", "garbage", "core", "cost", "router.policy", "router.handover", "cluster.scaling", "workload",
        "metrics", "config",
        "sizing", "draft", "models.spec", "models.adapters",
    ),
    "planner": (
        "errors", "fields", "core", "cost", "router.policy", "workload", "metrics", "config", "sizing", "sim", "draft.rule",
        "models.spec",
    ),
    "calculate": (
        "errors", "fields", "cost", "metrics", "models.spec", "models.catalog", "planner.figures", "planner.money",
    ),
    "advise": ("errors", "calculate", "cost"),
    "bench": ("errors", "amounts", "core.request", "workload", "metrics", "upstream"),
    "doctor": ("errors", "amounts", "metrics"),
    "tune": ("errors", "config", "sizing", "metrics", "sim", "workload", "bench.report.interval"),
    "conform": (),
    "files": ("errors", "formats", "models", "text"),
    "console": ("errors", "fields"),
    "measure": (
        "errors", "draft", "config", "sizing", "core", "cost", "engine", "metrics", "workload", "sim", "doctor.environment",
        "formats", "execution", "ops", "console",
    ),
    "evaluate": ("errors", "formats", "core.batch", "layers", "models.spec", "bench.report"),
    "quantize": ("errors", "files", "formats", "models", "text", "layers", "ops", "execution"),
    "assembly": ANYTHING,
    "offline": ANYTHING,
    "cli": ANYTHING,
    "__init__": ANYTHING,
    "__main__": ANYTHING,
}  # fmt: skip

THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "torch": ("ops", "layers", "execution", "train", "quantize", "evaluate"),
    "triton": ("ops",),
    "numpy": ("formats", "text", "ops", "execution", "cost", "workload", "offline", "quantize", "evaluate"),
    "tokenizers": ("text",),
    "jinja2": ("text",),
    "llguidance": ("text",),
    "huggingface_hub": ("formats",),
    "rich": ("console",),
    "starlette": ("server",),
    "uvicorn": ("server", "assembly"),
    "msgspec": ("engine", "execution", "server", "bench", "assembly", "router", "edge", "gateway"),
    "httptools": ("upstream", "router"),
    "websockets": ("router",),
    "psycopg": ("store",),
    "jwt": ("edge",),
    "zmq": ("engine",),
    "nixl": ("engine",),
    "ray": ("cluster",),
    "opentelemetry": ("server", "router", "metrics"),
    "uvloop": ("cli", "assembly"),
    "tqdm": ("formats",),
    "httpx": ("cli", "conform"),
    "openai": ("conform",),
    "anthropic": ("conform",),
    "ollama": ("conform",),
}

NO_CLOCK = (
    "core",
    "models",
    "config",
    "sizing",
    "metrics",
    "workload",
    "cost",
    "ops",
    "layers",
    "sim",
    "planner",
    "calculate",
    "advise",
    "doctor",
    "draft",
    "train",
    "quantize",
    "evaluate",
)
"""Time is an argument there."""

MAX_MODULES = 15

CONVENTIONS = ("Config",)
"""One per command."""

MAY_READ_ENVIRONMENT = ("cli", "console", "measure", "assembly")

FORBIDDEN_MODULES = ("pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "transformers", "multiprocessing")
FORBIDDEN_CALLS = ("eval", "exec", "torch.load", "yaml.load", "numpy.load", "np.load")


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def room_of(path: Path) -> str:
    return in_rooms(module_of(path)).split(".")[0]


def in_rooms(module: str) -> str:
    """A module's name without the layer that holds its room."""
    layer, _, rest = module.partition(".")
    return rest if layer in LAYERS and rest else module


def is_room(name: str) -> bool:
    return any(is_module(f"penstock.{layer}{name}") for layer in ("", *(f"{layer}." for layer in LAYERS)))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree(path)))


@cache
def imports(path: Path) -> tuple[str, ...]:
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are absolute here"
            modules = {alias.name for alias in node.names if is_module(f"{node.module}.{alias.name}")}
            yield from (f"{node.module}.{name}" for name in modules)
            if len(modules) < len(node.names):
                yield node.module or ""


@cache
def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def is_within(module: str, allowed: tuple[str, ...]) -> bool:
    return any(not prefix or module == prefix or module.startswith(prefix + ".") for prefix in allowed)


def test_a_room_imports_only_what_the_table_allows() -> None:
    faults = []
    for path in sources():
        room = room_of(path)
        for name in imports(path):
            target, top = in_rooms(name.removeprefix("penstock.")), name.split(".")[0]
            is_ours = name.startswith("penstock.")
            if is_ours and target.split(".")[0] != room and not is_within(target, MAY_IMPORT[room]):
                faults.append(f"{module_of(path)}: {room} may not import {name}")
            is_foreign = not is_ours and top != "penstock" and top not in sys.stdlib_module_names
            if is_foreign and room not in THIRD_PARTY.get(top, ()):
                faults.append(f"{module_of(path)}: {room} may not import {top}")
    assert not faults


def test_every_row_of_other_people_s_packages_is_used() -> None:
    used = {(name.split(".")[0], room_of(path)) for path in sources() for name in imports(path)}
    dead = [(package, room) for package, rooms in THIRD_PARTY.items() for room in rooms if (package, room) not in used]
    assert not dead, f"nothing there imports it any more: {dead}"


def test_the_runtime_needs_neither_service_nor_tools() -> None:
    above = ("penstock.service", "penstock.tools", "penstock.assembly", "penstock.cli", "penstock.offline")
    faults = [
        f"{module_of(path)}: {name}"
        for path in (PACKAGE / "runtime").rglob("*.py")
        for name in imports(path)
        if is_within(name, above)
    ]
    assert not faults


def test_what_puts_rooms_together_needs_nothing_above_it() -> None:
    above = {"assembly": ("penstock.cli", "penstock.offline"), "offline": ("penstock.cli",)}
    faults = [
        f"{module_of(path)}: {name}"
        for room, rooms in above.items()
        for path in (PACKAGE / room).rglob("*.py")
        for name in imports(path)
        if is_within(name, rooms)
    ]
    assert not faults


def test_the_first_look_shows_few_rooms() -> None:
    entries = sorted(path.name for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists())
    assert len(entries) <= 16, f"which room does a new entry of penstock/ belong to? {entries}"


def test_no_clock_below_the_loop() -> None:
    faults = [
        module_of(path)
        for path in sources()
        if room_of(path) in NO_CLOCK and {"time", "datetime", "sched"} & set(imports(path))
    ]
    assert not faults, "time is an argument here"


def test_nothing_unsafe_and_no_environment_below_the_command_line() -> None:
    faults = [f"{module_of(path)}:{line}: {fault}" for path in sources() for line, fault in _unsafe(path)]
    assert not faults


def _unsafe(path: Path) -> Iterator[tuple[int, str]]:
    yield from ((1, name) for name in imports(path) if name.split(".")[0] in FORBIDDEN_MODULES)
    for node in nodes(path):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Call) and dotted(node.func) in FORBIDDEN_CALLS:
            yield line, dotted(node.func)
        is_environment = isinstance(node, ast.Attribute) and dotted(node) in ("os.environ", "os.getenv", "os.putenv")
        if is_environment and room_of(path) not in MAY_READ_ENVIRONMENT:
            yield line, f"environment variables are read in {', '.join(MAY_READ_ENVIRONMENT)}"
        if isinstance(node, ast.Global):
            yield line, "no globals written after import"
        if isinstance(node, ast.Assert):
            yield line, "asserts vanish under -O; raise an error"


def packages() -> list[Path]:
    return sorted(path.parent for path in PACKAGE.rglob("__init__.py"))


def architecture() -> str:
    return (ROOT / "docs" / "ARCHITECTURE.md").read_text()


def described() -> dict[tuple[Path, ...], str]:
    """The lines of the architecture page's tree that belong to the folders which begin one."""
    found: dict[tuple[Path, ...], list[str]] = {}
    above: list[tuple[int, tuple[Path, ...]]] = []
    for line in architecture().split("```")[1].splitlines():
        indent, words = len(line) - len(line.lstrip()), line.split()
        names = list(itertools.takewhile(lambda word: word.endswith("/"), words))
        folders: tuple[Path, ...] = ()
        begins = bool(words) and indent <= 4 and words[0].endswith(("/", ".py"))
        while begins and above and above[-1][0] >= indent:
            above.pop()
        if begins and names and names[0] != "penstock/":
            parent = above[-1][1][-1] if above else PACKAGE
            folders = tuple(parent / name.rstrip("/") for name in names if (parent / name.rstrip("/")).is_dir())
        if folders:
            above.append((indent, folders))
        for _, those in above:
            found.setdefault(those, []).append(line)
    return {folders: "\n".join(lines) for folders, lines in found.items()}


def test_every_package_stands_in_the_architecture_page_where_it_belongs() -> None:
    lines = {folder: text for folders, text in described().items() for folder in folders}
    missing = []
    for folder in packages():
        within = next((parent for parent in folder.parents if parent in lines), None)
        text = architecture().split("```")[1] if within is None else lines[within]
        if folder != PACKAGE and not re.search(rf"(^|[\s(]){folder.name}/", text):
            missing.append(str(folder.relative_to(PACKAGE)))
    assert not missing, f"the tree of docs/ARCHITECTURE.md does not name {missing} beneath the folders they are in"


def test_the_architecture_page_names_only_modules_that_exist() -> None:
    for folders, text in described().items():
        names = set(re.findall(r"(?<![\w/`.])(\w+\.py)\b", text))
        dead = sorted(name for name in names if not any(any(folder.rglob(name)) for folder in folders))
        assert not dead, f"docs/ARCHITECTURE.md names {dead} in {folders[0].relative_to(PACKAGE)}, where they are not"
    there = [f"/{path.relative_to(ROOT)}" for path in (*sources(), *(ROOT / "tests").rglob("*.py"))]
    paths = sorted(set(re.findall(r"`((?:\w+/)+\w+\.py)`", architecture())))
    dead = [name for name in paths if not any(one.endswith(f"/{name}") for one in there)]
    assert not dead, f"docs/ARCHITECTURE.md names {dead}, which do not exist"


VAGUE = ("Whoever", "Somebody", "Someone", "Anybody", "Nobody", "Everybody", "Those", "These", "They", "That")


def test_a_docstring_begins_with_what_it_is_about() -> None:
    vague = [
        f"{module_of(path)}:{node.lineno}"
        for path in sources()
        for node in nodes(path)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if re.match(rf"({'|'.join(VAGUE)})\b", node.value.value)
    ]
    assert not vague, f"the subject is a noun, not one of {VAGUE}: {vague}"


RIDDLES = (
    "told",
    "tell",
    "tells",
    "foretell",
    "hear",
    "announce",
    "bury",
    "suspect",
    "acquit",
    "stumble",
    "breathe",
    "owes",
)


def test_names_are_nouns_of_the_field() -> None:
    """Inputs, payload, report; send, receive, broadcast: what is told to whom is no name. A file's own `tell` apart."""
    riddles = [
        f"{module_of(path)}:{node.lineno}: {name}"
        for path in sources()
        for node in nodes(path)
        for name in names_in(node)
        if set(name.split("_")) & set(RIDDLES) and not dotted_end(node, "file.tell")
    ]
    assert not riddles


def names_in(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name


def dotted_end(node: ast.AST, end: str) -> bool:
    return isinstance(node, ast.Attribute) and dotted(node).endswith(end)


def test_only_commands_print() -> None:
    printing = [
        f"{module_of(path)}:{node.lineno}"
        for path in sources()
        if room_of(path) not in ("cli", "console", "log")
        for node in nodes(path)
        if isinstance(node, ast.Call) and dotted(node.func) == "print"
    ]
    assert not printing, "a library logs; what the operator must read goes through log.say"


def test_every_module_and_package_says_what_it_is() -> None:
    silent = [module_of(path) for path in sources() if not ast.get_docstring(tree(path))]
    assert not silent, "a docstring: what it owns, what it must not know"


def test_the_tables_name_only_what_exists_and_all_of_it() -> None:
    rooms = {room_of(path) for path in sources()} - set(LAYERS)
    assert rooms == set(MAY_IMPORT)
    for room, allowed in MAY_IMPORT.items():
        missing = [name for name in allowed if name and not is_room(name)]
        assert not missing, f"{room} may import {missing}, which do not exist"
    named = {room for allowed in THIRD_PARTY.values() for room in allowed} | set(NO_CLOCK)
    assert named <= rooms, f"no such room: {named - rooms}"


def test_no_level_of_a_package_holds_more_than_a_reader_can_keep_in_mind() -> None:
    crowded = {
        str(folder.relative_to(PACKAGE)): count
        for folder in packages()
        if (count := len([path for path in folder.glob("*.py") if path.name != "__init__.py"])) > MAX_MODULES
    }
    assert not crowded, f"more than {MAX_MODULES} modules: {crowded}; which noun is missing?"


def test_no_imports_go_in_a_circle() -> None:
    modules = {f"penstock.{module_of(path)}": path for path in sources()}
    needs = {name: {found for found in imports(path) if found in modules} - {name} for name, path in modules.items()}
    while leaves := {name for name, found in needs.items() if not found}:
        needs = {name: found - leaves for name, found in needs.items() if name not in leaves}
    while tops := set(needs) - {found for others in needs.values() for found in others}:
        needs = {name: found for name, found in needs.items() if name not in tops}
    assert not needs, f"circles among {sorted(needs)}"


def test_a_class_name_has_one_meaning() -> None:
    homes: dict[str, list[str]] = {}
    for path in sources():
        for node in nodes(path):
            if isinstance(node, ast.ClassDef) and node.name not in CONVENTIONS:
                homes.setdefault(node.name, []).append(module_of(path))
    assert not {name: places for name, places in homes.items() if len(places) > 1}


def test_a_scope_has_one_key_of_ours() -> None:
    """What is known of an exchange is one typed value; the connection's own key apart."""
    strings = {
        (module_of(path), node.slice.value if isinstance(node, ast.Subscript) else node.args[0].value)
        for path in sources()
        if room_of(path) == "server"
        for node in nodes(path)
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Constant)
            and dotted(node.value).endswith("scope")
        )
        or (
            isinstance(node, ast.Call)
            and dotted(node.func).endswith(("scope.get", "scope.pop", "scope.setdefault"))
            and isinstance(node.args[0], ast.Constant)
        )
    }
    ours = {(module, key) for module, key in strings if str(key).startswith("penstock.")}
    assert {key for _, key in ours} <= {"penstock.connection"}, f"use exchange_of(scope): {sorted(ours)}"
