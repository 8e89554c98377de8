"""A server from its start to its end: socket, engines, signals, banner, exit status."""

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

import uvicorn

from penstock.assembly.banner import banner
from penstock.assembly.integrity import ModelVerifier
from penstock.config import EngineConfig
from penstock.errors import ConfigError
from penstock.log import say
from penstock.runtime.engine.client import EngineClient
from penstock.runtime.engine.spawn import Spawned
from penstock.runtime.text.watermark import Watermark
from penstock.service.config import ServerConfig
from penstock.service.edge.flow import StallWatch
from penstock.service.edge.headers import KEEP_ALIVE_S
from penstock.service.edge.memory import keep_large_apart
from penstock.service.edge.tls import TlsContexts
from penstock.service.server.adapters.table import AdapterTable
from penstock.service.server.app import make_app
from penstock.service.server.front import Front
from penstock.service.server.http.connection import Connection
from penstock.service.server.jobs.runner import BatchRunner
from penstock.service.server.jobs.service import Jobs, keep_house
from penstock.service.server.responses.routes import make_responses, resume_background
from penstock.service.server.served import ServedModel, ServedModels
from penstock.service.server.telemetry.record import TraceRecorder
from penstock.service.server.telemetry.trace import SpanTracer
from penstock.service.server.text import Text
from penstock.service.server.threads import on_daemon_thread
from penstock.service.store import bills, jobs, responses
from penstock.service.store.storage import open_storage
from penstock.tools.measure.signals import machine_metrics

LOGGER = logging.getLogger(__name__)
BACKLOG = 1024
DROPPED_STATUS = 1
SEND_BYTES = 64 << 10
"""What the system may hold for a client that does not read; connections inherit it."""
CANARY_PAUSE_S = 5.0
"""Until the model is asked again what it answers, where another request ran beside that."""
STALL_LOOK_S = 0.25
LINGER_S = 0.5
"""Time connections get to read their last words."""


class Engines(Protocol):
    """What answers requests, as a run of the server sees it: one engine, or a pool of them."""

    @property
    def front(self) -> Front: ...

    async def run(self) -> None:
        """Until `stop`. Raises when there is no use in going on."""

    async def until_ready(self, port: int) -> None:
        """Return once requests can be answered, and tell the operator so."""

    async def verify(self) -> None:
        """Look in the background whether what is served is what it was."""

    async def stop(self) -> None: ...


def serve(
    engine: EngineConfig,
    server: ServerConfig,
    command: list[str],
    text: Callable[[], Text],
    spawned: Spawned | None = None,
    verifier: ModelVerifier | None = None,
) -> int:
    """Serve one model until asked to stop; returns the exit status: 0 only if no answer was cut off."""

    def make() -> Engines:
        client = EngineClient(command, engine, hang_s=server.hang_s, spawned=spawned)
        start_s = time.monotonic() if spawned is None else spawned.start_s
        engines = SingleEngine(client, server, text, start_s, verifier)
        if engine.adapter.are_served:
            engines.front.models.adapters = AdapterTable(engines.front.models.first, engine.adapter)
        return engines

    return serve_engines(make, server)


def serve_engines(make: Callable[[], Engines], server: ServerConfig) -> int:
    """`make` is called inside the event loop that all of it lives on."""
    import uvloop

    allow_files()
    keep_large_apart()

    async def run() -> int:
        return await Serving(make(), server).run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def watermark_of(server: ServerConfig) -> Watermark | None:
    return None if server.watermark is None else Watermark.from_file(server.watermark)


@dataclass
class SingleEngine:
    """One model, loaded at once: its engine's failure is the server's."""

    _client: EngineClient
    _config: ServerConfig
    _open_text: Callable[[], Text]
    _start_s: float
    _verifier: ModelVerifier | None = None
    _phases: list[tuple[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        client, server = self._client, self._config
        client.on_phase = self._on_phase
        self.run, self.stop = client.run, client.stop
        self._model = ServedModel(client, num_tenants=server.num_tenants, num_keys=server.num_keys)
        self._model.watermark = watermark_of(server)
        self.front = Front(ServedModels(self._model), server, package_version())

    async def until_ready(self, port: int) -> None:
        """Load words and weights at the same time; whatever fails first is what is told."""
        words, _ = await asyncio.gather(on_daemon_thread(self._open_text, "words"), self._client.ready.wait())
        self._model.text = words
        if self._client.facts is not None:
            seconds = time.monotonic() - self._start_s
            say(banner(self._client.facts, self._config, port, self._phases, seconds))

    async def verify(self) -> None:
        """Whether the model is what it was; if not, it is not ready for anybody."""
        if self._verifier is None or self._client.facts is None:  # told to stop before it was ready
            return
        try:
            self._model.fault = await self._find_fault(self._verifier)
        except Exception:
            LOGGER.exception("the model could not be verified")
        if self._model.fault:
            LOGGER.error("%s", self._model.fault)

    async def _find_fault(self, verifier: ModelVerifier) -> str:
        change = await verifier.change(self._model)
        damage = await on_daemon_thread(verifier.damage, "verify")
        while change is None and not damage:
            await asyncio.sleep(CANARY_PAUSE_S)
            change = await verifier.change(self._model)
        return damage or change or ""

    def _on_phase(self, name: str, seconds: float) -> None:
        self._phases.append((name, seconds))
        if sys.stderr is not None and sys.stderr.isatty():
            LOGGER.info("%s: %.1f s", name, seconds)


class Serving:
    """One run of the server, from binding its socket to giving it back."""

    def __init__(self, engines: Engines, server: ServerConfig) -> None:
        self._config = server
        self._engines = engines
        self._front = engines.front
        self._start_s = time.monotonic()
        self._first_signal: signal.Signals | None = None
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()

    async def run(self) -> int:
        if self._config.record is not None:
            recorder = TraceRecorder(self._config.record, self._start_s)
            for model in self._front.models:
                model.meters.recorder = recorder
        self._front.counters.machine = machine_metrics()
        if self._config.watch_prefixes != "off":
            for model in self._front.models:
                model.watch_prefixes(keeps_words=self._config.watch_prefixes == "text")
        if self._config.otlp_endpoint is not None:
            self._front.tracer = SpanTracer(self._config.otlp_endpoint, self._front.version)
        tls = TlsContexts(self._config.tls)
        listener = bind(self._config.host, self._config.port)
        storage = open_storage(self._config.data_dir, (responses.SCHEMA, jobs.SCHEMA, bills.SCHEMA))
        service = make_responses(self._front, storage.database)
        runner = BatchRunner(Jobs(service, storage))
        app = make_app(self._front, service, runner)
        http = _HttpServer(app, self._front.config.max_body_mib << 20, tls.listener)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
        supervisor = asyncio.create_task(self._engines.run())
        watches = [self._front.calls.watch(), _cut_stalled(http, self._config.stall_s), tls.watch()]
        if app.access.tokens is not None:
            watches.append(app.access.tokens.watch())
        sweeper = asyncio.gather(*watches)
        listening = asyncio.create_task(http.serve(sockets=[listener]))
        try:
            is_ready = await self._until_ready(supervisor, listener.getsockname()[1])
            await resume_background(service)
            await runner.resume()
            house = asyncio.create_task(keep_house(runner.jobs, service.kept, self._config.retention_days * 86_400))
            verifying = asyncio.create_task(self._engines.verify())
            await _first(supervisor, asyncio.create_task(self._stopping.wait()))
            verifying.cancel()
            house.cancel()
            if supervisor.done():
                await asyncio.sleep(LINGER_S)  # those who waited are told before the connection ends
                supervisor.result()
            if not is_ready and self._first_signal == signal.SIGINT:
                raise KeyboardInterrupt
            return await self._stop()
        finally:
            sweeper.cancel()
            http.should_exit = True
            await service.background.stop()
            await runner.stop()
            await self._engines.stop()
            await asyncio.gather(supervisor, listening, sweeper, return_exceptions=True)
            if self._front.tracer is not None:
                self._front.tracer.close()
            storage.close()

    async def _until_ready(self, supervisor: "asyncio.Task[None]", port: int) -> bool:
        """False if a signal came first."""
        ready = asyncio.create_task(self._engines.until_ready(port))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await _first(supervisor, ready, stopping)
            if ready.done():
                ready.result()
            elif supervisor.done():
                supervisor.result()
            if not ready.done():
                return False
            gc.freeze()  # what is here now stays: later collections need not look at it
            return True
        finally:
            for task in (stopping, ready):
                task.cancel()

    def _on_signal(self, number: signal.Signals) -> None:
        """The first asks us to drain, another to hurry; a terminal that goes away only ever asks to drain."""
        if self._first_signal is None:
            self._first_signal = number
            self._stopping.set()
        elif number != signal.SIGHUP:
            self._hurrying.set()

    async def _stop(self) -> int:
        """Let answers in progress end; a second signal, or --drain-s, cuts them off."""
        front = self._front
        num_open = front.health.num_open
        if num_open:
            answers = "1 answer" if num_open == 1 else f"{num_open} answers"
            LOGGER.info("finishing %s; once more to cut short", answers)
        drain = asyncio.create_task(front.health.drain(self._config.drain_s))
        hurry = asyncio.create_task(self._hurrying.wait())
        await _first(drain, hurry)
        drain.cancel()
        hurry.cancel()
        num_dropped = front.health.num_open
        if num_dropped:
            LOGGER.warning("%d answers are cut off", num_dropped)
            await self._engines.stop()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    while front.health.num_open:
                        await asyncio.sleep(0.01)
        return DROPPED_STATUS if num_dropped else 0


class _HttpServer(uvicorn.Server):
    """Signals are ours to handle, and connections end when we say so."""

    def __init__(self, app: Any, max_body_bytes: int, tls: ssl.SSLContext | None) -> None:
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="websockets-sansio",
            ws_max_size=max_body_bytes,
            lifespan="off",
            access_log=False,
            log_level="error",
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
            backlog=BACKLOG,
        )
        config.load()
        config.ssl = tls
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


def allow_files() -> None:
    """As many as the system lets us have: every client is an open file."""
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))


def bind(host: str, port: int) -> socket.socket:
    """A socket to listen on, of a server or a router; ConfigError if the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
    try:
        listener.bind((host.strip("[]"), port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from error
    return listener


async def _cut_stalled(http: uvicorn.Server, stall_s: float) -> None:
    """Runs for ever."""
    stalls = StallWatch(stall_s)
    while True:
        await asyncio.sleep(STALL_LOOK_S)
        stalls.sweep(http.server_state.connections, time.monotonic())


async def _first(*tasks: "asyncio.Future[Any]") -> None:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


def package_version() -> str:
    try:
        return version("penstock")
    except PackageNotFoundError:
        return "0.1.0"
