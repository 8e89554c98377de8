"""A router from its start to its end: sockets, replicas by flag and by file, signals, exit status."""

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from penstock.amounts import counted
from penstock.assembly.banner import url_of
from penstock.assembly.fleet.gateway import add_outside, close_gateway, open_gateway
from penstock.assembly.fleet.replicas import LocalReplicas
from penstock.assembly.serving import BACKLOG, DROPPED_STATUS, allow_files, bind, package_version
from penstock.errors import PenstockError
from penstock.log import say, set_up
from penstock.service.config import ListenConfig, RouterConfig
from penstock.service.edge.tls import HANDSHAKE_S
from penstock.service.gateway.audit import AuditEntry, write_audit
from penstock.service.gateway.gateway import Gateway
from penstock.service.router.admin.api import AdminApi, Audit
from penstock.service.router.app import RouterApp
from penstock.service.router.fleet import LiveReplica, ReplicaState
from penstock.service.router.proxy.client import InboundConnection
from penstock.service.router.surface import doubts
from penstock.service.router.trace import RouterTracer

LOGGER = logging.getLogger(__name__)
WATCH_S = 1.0


@dataclass(frozen=True, slots=True)
class Routing:
    """All settings of a router."""

    listen: ListenConfig
    config: RouterConfig
    replicas: tuple[str, ...]
    replicas_file: Path | None = None
    replica_key: str = ""
    admin_key: str = ""
    gateway: Path | None = None
    commands: tuple[tuple[str, ...], ...] = ()
    """Servers to start on this machine, each a replica."""
    metrics_key: str = ""
    """Reads /metrics and nothing else."""


def route(routing: Routing) -> int:
    """Route until asked to stop; returns the exit status: 0 only if no answer was cut off."""
    import uvloop

    set_up()
    allow_files()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(routing))


async def _run(routing: Routing) -> int:
    gateway = open_gateway(routing.gateway) if routing.gateway is not None else None
    app = _make_app(routing, gateway)
    stopping, hurrying = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        handler = partial(_on_signal, stopping, hurrying)
        asyncio.get_running_loop().add_signal_handler(number, handler)
    async with contextlib.AsyncExitStack() as stack:
        if gateway is not None:
            stack.callback(close_gateway, gateway)
        stack.push_async_callback(app.close)
        listener = bind(routing.listen.host, routing.listen.port)
        server = await _listen(stack, app, listener, app.tls.listener)
        if routing.listen.admin_port is not None:
            await _open_admin(stack, app, routing, gateway)
        app.start()
        await _bring_replicas(stack, app, routing)
        where = url_of(routing.listen, listener.getsockname()[1])
        count = counted(len(app.fleet.own) + len(routing.commands), "replica")
        say(f"penstock routes on {where}, {count}, {routing.config.policy}")
        doubting = asyncio.ensure_future(_log_doubts(app))
        await stopping.wait()
        doubting.cancel()
        server.close()
        return await _drain(app, routing.listen.drain_s, hurrying)


def _make_app(routing: Routing, gateway: Gateway | None) -> RouterApp:
    endpoint, version = routing.config.otlp_endpoint, package_version()
    app = RouterApp(
        routing.listen,
        routing.config,
        replica_key=routing.replica_key,
        version=version,
        gateway=gateway,
        metrics_key=routing.metrics_key,
        tracer=RouterTracer(endpoint, version) if endpoint is not None else None,
    )
    if gateway is not None:
        add_outside(app, gateway.settings)
    app.on_change = _say
    for name, url in named(routing.replicas):
        app.add_replica(name, url)
    return app


async def _log_doubts(app: RouterApp) -> None:
    """Log what looks wrong in the fleet, once every replica has been looked at."""
    while not app.fleet.own or any(one.state is ReplicaState.UNKNOWN for one in app.fleet.own):
        await asyncio.sleep(0.1)
    for doubt in doubts(app):
        LOGGER.warning("%s", doubt)


def _on_signal(stopping: asyncio.Event, hurrying: asyncio.Event) -> None:
    """The first asks us to drain, another to hurry."""
    (hurrying if stopping.is_set() else stopping).set()


async def _listen(
    stack: contextlib.AsyncExitStack,
    target: RouterApp | AdminApi,
    listener: socket.socket,
    tls: ssl.SSLContext | None = None,
) -> asyncio.Server:
    """Until the stack is left."""
    server = await listen_for(target, listener, tls)
    stack.callback(server.close)
    return server


async def listen_for(
    target: RouterApp | AdminApi, listener: socket.socket, tls: ssl.SSLContext | None
) -> asyncio.Server:
    patience_s = HANDSHAKE_S if tls is not None else None
    return await asyncio.get_running_loop().create_server(
        lambda: InboundConnection(target), sock=listener, backlog=BACKLOG, ssl=tls, ssl_handshake_timeout=patience_s
    )


async def _open_admin(
    stack: contextlib.AsyncExitStack, app: RouterApp, routing: Routing, gateway: Gateway | None
) -> None:
    """On this machine alone."""
    admin = AdminApi(app, routing.admin_key, audit_of(gateway))
    stack.callback(admin.close)
    listener = bind("127.0.0.1", routing.listen.admin_port or 0)
    await _listen(stack, admin, listener)
    say(f"penstock admin on http://127.0.0.1:{listener.getsockname()[1]}")


async def _bring_replicas(stack: contextlib.AsyncExitStack, app: RouterApp, routing: Routing) -> None:
    """Replicas begun on this machine, and replicas that a file names."""
    if routing.commands:
        local = LocalReplicas(app, routing.commands, routing.replica_key)
        keeping = asyncio.ensure_future(local.run())
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, local.roll)

        async def end() -> None:
            await local.stop()
            await asyncio.gather(keeping, return_exceptions=True)

        stack.push_async_callback(end)
    if routing.replicas_file is not None:
        stack.callback(asyncio.ensure_future(watch_file(app, routing.replicas_file)).cancel)


async def _drain(app: RouterApp, drain_s: float, hurrying: asyncio.Event) -> int:
    """Let answers in progress end; returns the exit status."""
    draining = asyncio.ensure_future(app.drain(drain_s))
    hurry = asyncio.ensure_future(hurrying.wait())
    await asyncio.wait((draining, hurry), return_when=asyncio.FIRST_COMPLETED)
    hurry.cancel()
    num_dropped = draining.result() if draining.done() else app.num_open
    if num_dropped:
        LOGGER.warning("%d answers are cut off", num_dropped)
    return DROPPED_STATUS if num_dropped else 0


def audit_of(gateway: Gateway | None) -> Audit | None:
    """Admin actions go to the gateway's database where there is one, else to the log."""
    if gateway is None:
        return None
    database = gateway.database

    def audit(action: str, about: str) -> None:
        write_audit(database, AuditEntry(time.time(), "admin", action, about))

    return audit


def named(addresses: Iterable[str]) -> list[tuple[str, str]]:
    """Names and addresses; whoever has no name gets one by number."""
    found = []
    for number, address in enumerate(addresses):
        name, separator, url = address.partition("=")
        if separator and "/" not in name and ":" not in name and name:
            found.append((name, url))
        else:
            found.append((f"r{number}", address))
    return found


async def watch_file(app: RouterApp, path: Path) -> None:
    """Replicas follow the lines of the file. A file that cannot be read changes nothing."""
    by_url: dict[str, str] = {}
    last: str | None = None
    while True:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            text = path.read_text()
            if text != last:
                last = text
                follow(app, text, by_url)
        await asyncio.sleep(WATCH_S)


def follow(app: RouterApp, text: str, by_url: dict[str, str]) -> None:
    """`by_url`: the replicas this file has brought, by address."""
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    wanted: dict[str, str] = {}
    for line in filter(None, lines):
        name, separator, url = line.partition("=")
        has_name = bool(separator) and "/" not in name
        wanted[url if has_name else line] = name if has_name else line.removeprefix("http://").replace(":", "-")
    for url in [one for one in by_url if one not in wanted]:
        app.remove_replica(by_url.pop(url))
    for url, name in wanted.items():
        if url not in by_url:
            try:
                app.add_replica(name, url)
                by_url[url] = name
            except PenstockError as error:
                LOGGER.error("%s", error)


def _say(replica: LiveReplica) -> None:
    LOGGER.info("replica %s is %s", replica.name, replica.state.value)
