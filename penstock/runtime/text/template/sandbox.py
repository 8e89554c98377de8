"""Where chat templates run: they come with models, so nobody vouches for them.

A template may read plain values, call listed methods, filters and functions, and make text; nothing else can be reached.
What it does is counted against a `Budget`: every block by its nodes (`meter`), every operation whose size depends on
values by that size, before it is done. That covers endless and nested loops, recursion, repetition and powers, growing
text by joining or capturing it, formats with huge widths, and values that hold themselves many times over. The counting
needs no clock, no signal and no second process, so it works in any thread and stops only the one rendering.
"""

import re
import threading
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from string import Formatter
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter, safe_range
from jinja2.utils import Cycler, Joiner, Namespace, pass_context

from penstock.errors import ModelFileError, RequestError
from penstock.runtime.text.template.budget import MAX_INTEGER_BITS, Budget, TemplateLimitError, characters_of
from penstock.runtime.text.template.meter import COMPARE, CONCATENATE, SLICE, STEP, RefusedNode, meter
from penstock.runtime.text.template.sandbox_filters import (
    CALL_STEPS,
    account,
    check_format_spec,
    metered_filters,
    metered_tests,
    pay_percent_format,
)
from penstock.runtime.text.template.sandbox_methods import is_allowed, pay
from penstock.runtime.text.template.shape import TemplateShape, probe

MAX_SOURCE_CHARACTERS = 1 << 17
_DATE_FORMAT = re.compile(r"(?:[^%]|%-?[A-Za-z%])*")
MAX_DATE_FORMAT = 200


class TemplateRefusal(Exception):
    """The template itself refused the conversation (`raise_exception`)."""


class Clock:
    """`strftime_now` of one rendering: the time that was given, never the clock's."""

    def __init__(self, now: datetime) -> None:
        self._now = now

    def __call__(self, date_format: str) -> str:
        if len(date_format) > MAX_DATE_FORMAT or not _DATE_FORMAT.fullmatch(date_format):
            raise TemplateLimitError("its date format is too long or has widths")
        return self._now.strftime(date_format)


class Sandbox(ImmutableSandboxedEnvironment):
    """The template engine with the dialect of chat templates, closed and counting. Threads may share one."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        # Nothing is computed while compiling: constants wait for a budget like everything else.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=[GenerationBlock, loopcontrols],
            finalize=self._output,
        )
        self._thread = threading.local()
        self.filters = metered_filters(self._budget)
        tests: dict[str, Any] = metered_tests(self._budget)
        self.tests = tests
        self.filters[STEP] = self._step
        self.filters[CONCATENATE] = self._concatenate
        self.filters[COMPARE] = self._compare
        self.filters[SLICE] = self._slice
        self.globals = {
            "range": safe_range,
            "dict": _PlainDict(),
            "cycler": Cycler,
            "joiner": Joiner,
            "namespace": _PlainNamespace,
            "raise_exception": _refuse,
        }
        self._functions = {id(function) for function in self.globals.values()}

    @contextmanager
    def spending(self, budget: Budget) -> Iterator[None]:
        """Everything this thread renders inside counts against `budget`."""
        before = getattr(self._thread, "budget", None)
        self._thread.budget = budget
        try:
            yield
        finally:
            self._thread.budget = before

    def _budget(self) -> Budget:
        budget: Budget = self._thread.budget
        return budget

    # What the engine calls while it compiles.

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return meter(super()._parse(source, name, filename))

    # What a template's own operations come to.

    @pass_context
    def _step(self, context: Context, value: Any, count: int) -> Any:
        self._thread.budget.step(count)
        return value

    @pass_context
    def _output(self, context: Context, value: Any) -> Any:
        if isinstance(value, str):
            self._thread.budget.text(value)
        else:
            self._thread.budget.value(value)
        return value

    @pass_context
    def _concatenate(self, context: Context, values: tuple[Any, ...]) -> str:
        for value in values:
            self._output(context, value)
        return "".join(map(str, values))

    @pass_context
    def _compare(self, context: Context, value: Any) -> Any:
        if not isinstance(value, int | float | bool | None):
            self._budget().value(value)
        return value

    @pass_context
    def _slice(self, context: Context, value: Any) -> Any:
        return account(self._budget(), value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = self._budget()
        if isinstance(left, str) and operator == "%":
            pay_percent_format(budget, left, right)
            return account(budget, left % right)
        if operator == "+":
            _pay_join(budget, left)
            _pay_join(budget, right)
        elif operator == "*":
            _pay_repeat(budget, left, right)
        elif operator == "**":
            _check_power(left, right)
        return _check_integer(self.binop_table[operator](left, right))

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, tuple):
            self._budget().value(argument)  # it is hashed, all of it
        return super().getitem(obj, argument)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """What may not be touched ends the rendering, where the engine would show nothing and go on."""
        raise SecurityError(f"it reads {attribute[:40]!r} of a {type(obj).__name__}")

    def wrap_str_format(self, value: Any) -> Any:
        """`str.format` through a formatter that checks widths; `format_map` is not offered."""
        owner = getattr(value, "__self__", None)
        if not isinstance(value, types.BuiltinMethodType) or value.__name__ != "format" or type(owner) is not str:
            return None
        return _Format(self, owner)

    def is_safe_callable(self, obj: Any) -> bool:
        if isinstance(obj, types.BuiltinMethodType):
            return is_allowed(obj.__self__, obj.__name__)
        if isinstance(obj, types.MethodType):
            return isinstance(obj.__self__, LoopContext | Cycler | Joiner | _PlainDict | Extension)
        return isinstance(obj, Macro | LoopContext | Joiner | Clock | _Format) or id(obj) in self._functions

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        budget = __self._budget()
        budget.step(CALL_STEPS + len(args) + len(kwargs))
        if isinstance(__obj, Undefined):
            return __obj()  # which says what is missing
        if not __self.is_safe_callable(__obj):
            raise SecurityError(f"a {type(__obj).__name__} may not be called")
        if isinstance(__obj, types.BuiltinMethodType):
            args = pay(budget, __obj.__self__, __obj.__name__, args)
        elif isinstance(__obj, _PlainDict | types.MethodType):
            budget.value(args)  # keys are hashed, and `loop.changed` compares
            for value in args:
                budget.step(len(value) if hasattr(value, "__len__") else 1)
        budget.enter()
        try:
            return account(budget, super().call(__context, __obj, *args, **kwargs))
        finally:
            budget.leave()


class CompiledTemplate:
    """One template in its sandbox."""

    def __init__(self, sandbox: Sandbox, source: str, special_tokens: Mapping[str, str]) -> None:
        self._sandbox = sandbox
        self._source = source
        self._special_tokens = special_tokens
        if len(source) > MAX_SOURCE_CHARACTERS:
            raise ModelFileError(
                f"the chat template has {len(source)} characters; templates may have {MAX_SOURCE_CHARACTERS}"
            )
        try:
            self._template = sandbox.from_string(source)
        except RefusedNode as error:
            raise ModelFileError(f"the chat template is refused: {error}") from error
        except (TemplateError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ModelFileError(f"the chat template does not compile: {_shown(error)}") from error

    @cached_property
    def shape(self) -> TemplateShape:
        known = {**self._special_tokens, "strftime_now": Clock(datetime.min)}
        return probe(self._source, lambda values: self._run(known | dict(values), Budget.for_probe()))

    def render(self, values: dict[str, Any], now: datetime | None) -> str:
        """What it makes of values, within a budget that follows from their size."""
        clock = {} if now is None else {"strftime_now": Clock(now)}
        return self._run(values | clock, Budget.for_input(values))

    def _run(self, values: dict[str, Any], budget: Budget) -> str:
        """Every way it can end but well is a `RequestError` or a `ModelFileError`."""
        try:
            with self._sandbox.spending(budget):
                return "".join(self._template.root_render_func(self._template.new_context(values)))
        except TemplateRefusal as error:
            raise RequestError(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from error
        except SecurityError as error:
            raise ModelFileError(f"the chat template tries what it may not do: {_shown(error)}") from error
        except (TemplateLimitError, RecursionError, MemoryError, OverflowError) as error:
            raise RequestError(
                f"the model's chat template was stopped on these messages: {_shown(error)}",
                param="messages",
                code="template_limit",
            ) from error
        except Exception as error:
            raise RequestError(
                f"the model's chat template cannot render these messages: {_shown(error)}", param="messages"
            ) from error


class GenerationBlock(Extension):
    """`{% generation %}` marks what an assistant wrote, for training; rendering shows it as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("render_block"), [], [], body).set_lineno(lineno)

    def render_block(self, caller: Macro) -> str:
        return str(caller())


class _Format:
    """`text.format`, with attribute access under the sandbox's rules and widths within bounds."""

    def __init__(self, sandbox: Sandbox, text: str) -> None:
        self._sandbox = sandbox
        self._text = text

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        budget = self._sandbox._budget()
        budget.text(self._text)
        budget.step(CALL_STEPS * self._text.count("{"))
        fields = sum(1 for part in Formatter().parse(self._text) if part[1] is not None)
        size = budget.value([*args, *kwargs.values()])
        budget.write(fields * (size.characters + 16))
        return _CheckedFormatter(self._sandbox).vformat(self._text, args, kwargs)


class _CheckedFormatter(SandboxedFormatter):
    def format_field(self, value: Any, format_spec: str) -> Any:
        check_format_spec(format_spec)
        return super().format_field(value, format_spec)


class _PlainDict:
    """`dict(...)` and `dict.fromkeys(...)` without the type behind them."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class _PlainNamespace(Namespace):
    """A namespace whose names do not begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *values = args
        attributes = dict(*values, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace may not hold the name {name[:40]!r}")


def _refuse(message: Any) -> None:
    raise TemplateRefusal(str(message)[:2000])


def _pay_join(budget: Budget, value: Any) -> None:
    if isinstance(value, str):
        budget.text(value)
    elif isinstance(value, list | tuple):
        budget.step(len(value))


def _pay_repeat(budget: Budget, left: Any, right: Any) -> None:
    for value, times in ((left, right), (right, left)):
        if isinstance(times, int) and isinstance(value, str):
            budget.write(characters_of(value) * max(times, 0))
        elif isinstance(times, int) and isinstance(value, list | tuple):
            budget.step(len(value) * max(times, 0))


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > MAX_INTEGER_BITS:
        raise TemplateLimitError("it raises a number to too high a power")


def _check_integer(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
        raise TemplateLimitError("a number has too many digits")
    return value


def _shown(error: BaseException) -> str:
    return f"{str(error)[:300] or type(error).__name__}"
