"""Work that blocks, away from the event loop, on a thread that does not keep the process from ending."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def on_daemon_thread(function: Callable[[], T], name: str) -> "asyncio.Future[T]":
    """Unlike the threads of an executor, which are waited for when the event loop ends."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def report(outcome: Callable[[], None]) -> None:
        if not done.done():
            outcome()

    def post(outcome: Callable[[], None]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(report, outcome)

    def work() -> None:
        try:
            value = function()
            post(lambda: done.set_result(value))
        except Exception as error:
            fault = error
            post(lambda: done.set_exception(fault))

    threading.Thread(target=work, name=name, daemon=True).start()
    return done
