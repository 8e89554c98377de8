"""A router from its start to its end: sockets, replicas by flag and by file, signals, exit status."""

import asyncio
import contextlib
import resource
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from penstock.amounts import counted
from penstock.assembly.gateway import add_outside, open_gateway
from penstock.assembly.replicas import LocalReplicas
from penstock.assembly.serving import BACKLOG, bind, package_version
from penstock.config import ListenConfig, RouterConfig
from penstock.errors import PenstockError
from penstock.gateway.audit import AuditEntry, write_audit
from penstock.gateway.gateway import Gateway
from penstock.router.admin import AdminApi, Audit
from penstock.router.app import RouterApp
from penstock.router.fleet import LiveReplica
from penstock.router.proxy.client import InboundConnection
from penstock.router.trace import RouterTracer

WATCH_S = 1.0
DROPPED_STATUS = 1


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


def route(routing: Routing) -> int:
    """Route until asked to stop; returns the exit status: 0 only if no answer was cut off."""
    import uvloop

    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(routing))


async def _run(routing: Routing) -> int:
    loop = asyncio.get_running_loop()
    gateway = open_gateway(routing.gateway) if routing.gateway is not None else None
    endpoint, version = routing.config.otlp_endpoint, package_version()
    app = RouterApp(
        routing.listen,
        routing.config,
        replica_key=routing.replica_key,
        version=version,
        gateway=gateway,
        tracer=RouterTracer(endpoint, version) if endpoint is not None else None,
    )
    if gateway is not None:
        add_outside(app, gateway.settings)
    app.on_change = _say
    for name, url in named(routing.replicas):
        app.add_replica(name, url)
    stopping, hurrying = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: (hurrying if stopping.is_set() else stopping).set())
    listener = bind(routing.listen.host, routing.listen.port)
    server = await loop.create_server(lambda: InboundConnection(app), sock=listener, backlog=BACKLOG)
    admin, admin_server = None, None
    if routing.listen.admin_port is not None:
        admin = AdminApi(app, routing.admin_key, audit_of(gateway))
        own = admin
        admin_listener = bind("127.0.0.1", routing.listen.admin_port)
        admin_server = await loop.create_server(lambda: InboundConnection(own), sock=admin_listener)
        print(f"penstock admin on http://127.0.0.1:{admin_listener.getsockname()[1]}", flush=True)
    app.start()
    local = LocalReplicas(app, routing.commands, routing.replica_key) if routing.commands else None
    keeping = asyncio.ensure_future(local.run()) if local is not None else None
    if local is not None:
        loop.add_signal_handler(signal.SIGHUP, local.roll)
    watching = asyncio.ensure_future(watch_file(app, routing.replicas_file)) if routing.replicas_file else None
    port = listener.getsockname()[1]
    count = len(app.fleet) + len(routing.commands)
    where = f"http://{routing.listen.host}:{port}"
    print(f"penstock routes on {where}, {counted(count, 'replica')}, {routing.config.policy}", flush=True)
    try:
        await stopping.wait()
        server.close()
        draining = asyncio.ensure_future(app.drain(routing.listen.drain_s))
        hurry = asyncio.ensure_future(hurrying.wait())
        await asyncio.wait((draining, hurry), return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        num_dropped = draining.result() if draining.done() else app.num_open
        if num_dropped:
            print(f"penstock: {num_dropped} answers are cut off", file=sys.stderr)
        return DROPPED_STATUS if num_dropped else 0
    finally:
        if watching is not None:
            watching.cancel()
        server.close()
        if local is not None and keeping is not None:
            await local.stop()
            await asyncio.gather(keeping, return_exceptions=True)
        if admin_server is not None and admin is not None:
            admin_server.close()
            admin.close()
        await app.close()
        if gateway is not None:
            gateway.database.close()


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
                print(f"penstock: {error}", file=sys.stderr)


def _say(replica: LiveReplica) -> None:
    print(f"penstock: replica {replica.name} is {replica.state.value}", file=sys.stderr)
