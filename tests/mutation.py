"""Do the tests notice broken code? Breaks the heart in hundreds of small ways and runs the tests of core and engine on each.

    python tests/mutation.py [--file blocks.py] [--line 120] [--seconds 600] [--core] [--verbose]

A mutant is one change to the syntax tree: a comparison moved or turned, a constant off by one, an operator exchanged, a
condition negated, two arguments swapped, a statement dropped. It is killed if a test fails or the tests take far too long.

Everything is imported and collected once. Each mutant then runs in a fork of this process, where the code of the functions
it touches is exchanged in place, and tests that killed many others run first. One fork a core runs at a time.

Survivors known to change nothing that anyone could notice (they count as survivors all the same):
- counters whose first value or stride does not matter: blocks `_num_pin_ends`; flights `_last`; roster `now`;
  scheduler `_num_added`
- a second look at what the first implies: blocks `block is None or content is None`, in `match` and in `publish`
- work saved, not changed: blocks `num_full <= num_published`; plan `end > num_held * block_size`; scheduler
  `num_computed >= (num_published + 1) * block_size`
- the short way left to the long one, which gives the same: scheduler `has_newcomers`, `len(drawn) == 1`, `limit - 1`
- a bound that is not reached: plan `max(room, 0)`, since each sequence has its token of the budget
- a flag read only of those outside: roster `is_waiting = False` of one that enters or ends
- the last turn of a loop: plan `prompts.append(...); continue`, since one prompt is under way, the last to enter
- None for False: plan `_make_room`
- undone at once: scheduler `_end` forgets siblings that it ends itself
- one entry sooner or later: deadlines `add`; the last accepted draft before a stop, cached or not
"""

import argparse
import ast
import os
import random
import resource
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
from hypothesis import Phase, settings

ROOT = Path(__file__).parent.parent
TARGETS = ("blocks", "queue/order", "queue/roster", "plan", "flights", "queue/deadlines", "sequence", "scheduler")
CORE_TESTS = (
    *(f"tests/core/test_{name}.py" for name in ("blocks", "books", "pins", "leaving", "states", "drafts", "results")),
    *(f"tests/core/test_{name}.py" for name in ("choices", "roster", "flights", "deadlines", "plan", "adopted")),
    *(f"tests/core/test_{name}.py" for name in ("batching", "mixed_steps", "shares", "prefix", "listening")),
    *(f"tests/core/test_{name}.py" for name in ("preemption", "scheduler", "lanes", "order", "progress", "sharing")),
)
"""Those that take least time first."""
TESTS = (
    *CORE_TESTS,
    *(f"tests/engine/test_{name}.py" for name in ("explain", "resume", "engine", "speculation", "laws")),
)
NUM_FORKS = os.cpu_count() or 2
MIN_SCORE = 0.9
MAX_BYTES = 4 * 2**30
MACHINE_EXAMPLES, MACHINE_RULES = 60, 30
"""The state machine runs last, in small."""

ORDERINGS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "bases", "keywords", "type_params"}


# Making mutants


@dataclass
class Mutant:
    """One child of one node of a module's tree, exchanged for another."""

    target: str
    tree: ast.Module
    parent: ast.AST
    name: str
    index: int | None
    old: ast.AST
    new: ast.AST

    @property
    def line(self) -> int:
        return getattr(self.old, "lineno", 0)

    def __str__(self) -> str:
        before, after = (ast.unparse(ast.fix_missing_locations(node)).split("\n")[0] for node in (self.old, self.new))
        return f"{self.target}.py:{self.line}:  {before}  ->  {after}"

    def compile(self) -> Any:
        self._put(self.new)
        try:
            return compile(ast.fix_missing_locations(self.tree), f"{self.target}.py", "exec")
        finally:
            self._put(self.old)

    def _put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.name, node)
        else:
            getattr(self.parent, self.name)[self.index] = node


def mutants_of(target: str) -> Iterator[Mutant]:
    tree = ast.parse((ROOT / "penstock/runtime/core" / f"{target}.py").read_text())
    for parent, name, index, node in _children(tree):
        for new in _alternatives(parent, name, node):
            yield Mutant(target, tree, parent, name, index, node, ast.copy_location(new, node))


def _children(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """Every node below, with its place: messages, annotations, and values that are named but not computed left out."""
    if isinstance(node, ast.JoinedStr | ast.Raise | ast.AnnAssign) or getattr(node, "name", "") == "__repr__":
        return
    for name, value in ast.iter_fields(node):
        if name in SKIPPED_FIELDS and not (name == "keywords" and isinstance(node, ast.Call)):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else ((None, value),):
            is_setting = isinstance(node, ast.Module | ast.ClassDef) and isinstance(child, ast.Assign)
            if isinstance(child, ast.AST) and not is_setting:
                yield node, name, index, child
                yield from _children(child)


def _alternatives(parent: ast.AST, name: str, node: ast.AST) -> Iterator[ast.AST]:
    for kind, change in CHANGES:
        if isinstance(node, kind):
            yield from change(node)
    is_test = name in ("test", "ifs")
    if is_test and not isinstance(node, ast.Compare | ast.UnaryOp):
        yield ast.UnaryOp(ast.Not(), node)


def _change_compare(node: ast.Compare) -> Iterator[ast.AST]:
    for index, ordering in enumerate(node.ops):
        for other in ORDERINGS[type(ordering)]:
            yield ast.Compare(node.left, [*node.ops[:index], other(), *node.ops[index + 1 :]], node.comparators)


def _change_operator(node: ast.BinOp) -> Iterator[ast.AST]:
    yield ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)


def _change_augmented(node: ast.AugAssign) -> Iterator[ast.AST]:
    yield ast.AugAssign(node.target, OPERATORS[type(node.op)](), node.value)
    yield ast.Pass()


def _change_both(node: ast.BoolOp) -> Iterator[ast.AST]:
    yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)


def _change_unary(node: ast.UnaryOp) -> Iterator[ast.AST]:
    if not isinstance(node.operand, ast.Constant):
        yield node.operand


def _change_constant(node: ast.Constant) -> Iterator[ast.AST]:
    value = node.value
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
        yield ast.Constant(value - 1)
    elif isinstance(value, float):
        yield ast.Constant(value + 1.0)


def _change_call(node: ast.Call) -> Iterator[ast.AST]:
    first, second, *rest = (*node.args, None, None)
    if ast.unparse(node.func) in ("min", "max") or not first or not second or isinstance(first, ast.Starred):
        return
    if ast.dump(first) != ast.dump(second):
        yield ast.Call(node.func, [second, first, *rest[:-2]], node.keywords)


def _drop(node: ast.stmt) -> Iterator[ast.AST]:
    is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    if not is_docstring:
        yield ast.Pass()


def _change_return(node: ast.Return) -> Iterator[ast.AST]:
    is_none = node.value is None or ast.unparse(node.value) == "None"
    yield ast.Pass() if is_none else ast.Return(ast.Constant(None))


def _change_jump(node: ast.Continue | ast.Break) -> Iterator[ast.AST]:
    yield ast.Break() if isinstance(node, ast.Continue) else ast.Continue()
    yield ast.Pass()


CHANGES: tuple[tuple[Any, Any], ...] = (
    (ast.Compare, _change_compare),
    (ast.BinOp, _change_operator),
    (ast.AugAssign, _change_augmented),
    (ast.BoolOp, _change_both),
    (ast.UnaryOp, _change_unary),
    (ast.Constant, _change_constant),
    (ast.Call, _change_call),
    ((ast.Expr, ast.Assign, ast.Delete, ast.Raise), _drop),
    (ast.Return, _change_return),
    ((ast.Continue, ast.Break), _change_jump),
)


# Putting one in place


def graft(module: ModuleType, code: Any) -> None:
    """Exchange the code of a module's functions, wherever they have been imported to, and its plain values."""
    scope: dict[str, Any] = {"__name__": module.__name__, "__file__": module.__file__}
    exec(code, scope)  # noqa: S102
    _exchange(vars(module), scope, partial(setattr, module), module.__name__)


def _exchange(old: Any, new: dict[str, Any], put: Any, home: str) -> None:
    for name, value in new.items():
        before = old.get(name)
        functions = [_function(one) for one in (before, value)]
        if all(functions):
            for attribute in ("__code__", "__defaults__", "__kwdefaults__"):
                setattr(functions[0], attribute, getattr(functions[1], attribute))
        elif isinstance(value, type) and value.__module__ == home and isinstance(before, type):
            _exchange(vars(before), dict(vars(value)), partial(setattr, before), home)
        elif isinstance(value, dict) and isinstance(before, dict) and not name.startswith("__"):
            before.update(value)
        elif isinstance(value, int | float | tuple) and value != before:
            put(name, value)


def _function(value: Any) -> FunctionType | None:
    if isinstance(value, property):
        value = value.fget
    value = getattr(value, "__func__", value)
    return value if isinstance(value, FunctionType) else None


# Running


@dataclass
class Fork:
    mutant: Mutant
    process_id: int
    report: int
    started_s: float


@dataclass
class Campaign:
    """Runs inside pytest, in place of its loop over tests."""

    mutants: list[Mutant]
    verbose: bool
    has_machine: bool = True
    """The state machine runs too, last."""
    seconds: float | None = None
    """After which no further mutant is begun."""
    done: list[Mutant] = field(default_factory=list)
    survivors: list[Mutant] = field(default_factory=list)
    kills: dict[str, int] = field(default_factory=dict)

    def pytest_configure(self) -> None:
        settings.register_profile(
            "mutants", derandomize=True, deadline=None, database=None, phases=(Phase.generate,), max_examples=30
        )
        settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        started_s = time.monotonic()
        if self._wait([self._fork(session, None)])[1] is not None:
            raise SystemExit("the tests fail on code that nobody broke")
        self._limit_s = 4 * (time.monotonic() - started_s) + 10
        waiting, forks = list(reversed(self.mutants)), []
        while waiting or forks:
            while waiting and len(forks) < NUM_FORKS:
                forks.append(self._fork(session, waiting.pop()))
            fork, killer = self._wait(forks)
            forks.remove(fork)
            self.done.append(fork.mutant)
            if self.seconds is not None and time.monotonic() - started_s > self.seconds:
                waiting.clear()
            self._take_down(fork.mutant, killer)
            if sys.stderr.isatty():
                print(
                    f"\r{len(self.done)} of {len(self.mutants)}, {len(self.survivors)} survive ",
                    end="",
                    file=sys.stderr,
                )
        return True

    def _take_down(self, mutant: Mutant, killer: str | None) -> None:
        if killer is None:
            self.survivors.append(mutant)
            print(f"survives  {mutant}", flush=True)
            return
        self.kills[killer] = self.kills.get(killer, 0) + 1
        if self.verbose:
            print(f"killed    {mutant}  by {killer}", flush=True)

    def _fork(self, session: pytest.Session, mutant: Mutant | None) -> Fork:
        sys.stdout.flush()
        receiving, sending = os.pipe()
        process_id = os.fork()
        if process_id:
            os.close(sending)
            return Fork(mutant, process_id, receiving, time.monotonic())  # type: ignore[arg-type]
        os.close(receiving)
        try:
            killer = self._run(session, mutant)
        except BaseException as error:
            killer = type(error).__name__
        with suppress(OSError):
            os.write(sending, (killer or "").encode()[:4000])
        os._exit(0)

    def _run(self, session: pytest.Session, mutant: Mutant | None) -> str | None:
        """In the fork: the name of the test that fails, None if none does."""
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
        if mutant is not None:
            graft(import_module(f"penstock.runtime.core.{mutant.target.replace('/', '.')}"), mutant.compile())
        items = sorted(session.items, key=lambda item: -self.kills.get(item.nodeid, 0))
        for item, following in zip(items, [*items[1:], None]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed:
                return item.nodeid
        from tests.core.test_state_machine import run

        if self.has_machine:
            run(MACHINE_EXAMPLES, MACHINE_RULES, phases=(Phase.generate,))
        return None

    def _wait(self, forks: list[Fork]) -> tuple[Fork, str | None]:
        """The first fork to end, and what killed its mutant."""
        while True:
            ready, _, _ = select.select([fork.report for fork in forks], [], [], 1.0)
            for fork in forks:
                is_late = time.monotonic() - fork.started_s > getattr(self, "_limit_s", 600)
                if is_late:
                    os.kill(fork.process_id, signal.SIGKILL)
                if is_late or fork.report in ready:
                    reported = "time" if is_late else os.read(fork.report, 4096).decode()
                    os.close(fork.report)
                    _, status = os.waitpid(fork.process_id, 0)
                    return fork, reported or (None if os.waitstatus_to_exitcode(status) == 0 else "death")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", choices=[f"{target}.py" for target in TARGETS], help="only this file's mutants")
    parser.add_argument("--line", type=int, help="only those of this line")
    parser.add_argument("--seconds", type=float, help="as many as that allows, drawn at random, instead of all")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--core", action="store_true", help="only the tests of core, a fourth of the time; no machine")
    parser.add_argument("--verbose", action="store_true", help="say which test killed each")
    asked = parser.parse_args()
    targets = [target for target in TARGETS if asked.file in (None, f"{target}.py")]
    mutants = [one for target in targets for one in mutants_of(target) if asked.line in (None, one.line)]
    if asked.seconds is not None:
        random.Random(asked.seed).shuffle(mutants)
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    campaign = Campaign(mutants, asked.verbose, not asked.core, asked.seconds)
    started_s = time.monotonic()
    options = [
        "-q",
        "--no-header",
        "-p",
        "no:cacheprovider",
        "--capture=no",
        "--assert=plain",
        "-m",
        "not slow",
        "--tb=no",
    ]
    pytest.main([*options, *(CORE_TESTS if asked.core else TESTS)], plugins=[campaign])
    return report(campaign, time.monotonic() - started_s)


def report(campaign: Campaign, seconds: float) -> int:
    print()
    for target in TARGETS:
        num_mutants = sum(mutant.target == target for mutant in campaign.done)
        num_survivors = sum(mutant.target == target for mutant in campaign.survivors)
        if num_mutants:
            print(f"{target + '.py':14}{num_mutants - num_survivors:5} of {num_mutants} killed")
    score = 1 - len(campaign.survivors) / max(len(campaign.done), 1)
    drawn = f"{len(campaign.done)} of {len(campaign.mutants)} mutants"
    print(f"score {score:.1%} of {drawn} in {seconds:.0f} s; at least {MIN_SCORE:.0%} is wanted")
    return 0 if score >= MIN_SCORE else 1


if __name__ == "__main__":
    sys.exit(main())
