"""Operations: a plain torch function that defines each, and faster kernels that stand in for it.

An operation's definition is its meaning on every device. A kernel registers beside it for one type of device and says which
arguments it fits; the first that fits runs. One parity test walks `OPERATIONS` and holds every kernel to its definition over
the operation's examples (`tests/ops/examples/`), so a kernel that is registered is a kernel that is tested.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

IS_PLAIN: ContextVar[bool] = ContextVar("is_plain", default=False)


@contextmanager
def plainly() -> Iterator[None]:
    """Operations in here are computed by their definitions."""
    token = IS_PLAIN.set(True)
    try:
        yield
    finally:
        IS_PLAIN.reset(token)


@dataclass(frozen=True, slots=True)
class Kernel(Generic[P, R]):
    name: str
    run: Callable[P, R]
    fits: Callable[P, bool]


@dataclass(slots=True)
class Op(Generic[P, R]):
    """One operation. Its first argument is a tensor, whose device chooses the kernel."""

    name: str
    definition: Callable[P, R]
    kernels: dict[str, list[Kernel[P, R]]] = field(default_factory=dict)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        kernels = () if IS_PLAIN.get() else self.kernels.get(args[0].device.type, ())  # type: ignore[attr-defined]
        for kernel in kernels:
            if kernel.fits(*args, **kwargs):
                return kernel.run(*args, **kwargs)
        return self.definition(*args, **kwargs)

    def kernel(
        self, device_type: str, fits: Callable[P, bool] | None = None
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Registers the decorated function; those registered earlier are tried first."""

        def register(run: Callable[P, R]) -> Callable[P, R]:
            name = f"{device_type}.{run.__module__.rsplit('.', 1)[-1]}.{run.__name__}"
            self.kernels.setdefault(device_type, []).append(Kernel(name, run, fits or _fits_all))
            return run

        return register


OPERATIONS: dict[str, Op[..., Any]] = {}


def operation(definition: Callable[P, R]) -> Op[P, R]:
    """Makes the decorated function the definition of an operation of that name."""
    op = Op(definition.__name__, definition)
    OPERATIONS[op.name] = op
    return op


def _fits_all(*args: Any, **kwargs: Any) -> bool:
    return True
