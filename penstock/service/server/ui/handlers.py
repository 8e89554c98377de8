"""The JSON behind the pages."""

import math
import time
from typing import Annotated, Any

import msgspec
from starlette.requests import Request

from penstock.runtime.models.catalog import CONFIGS
from penstock.service.server.front import Front, body_of, check_admin, front_of, sees_all
from penstock.service.server.http.answer import Json, Parts
from penstock.service.server.http.exchange import exchange_of
from penstock.service.server.http.faults import ApiError, ErrorKind, busy, invalid, not_found
from penstock.service.server.pool.resident import Residency
from penstock.service.server.served import ServedModel
from penstock.service.server.ui.flags import words_of
from penstock.service.server.ui.ledger import RequestRecord
from penstock.service.server.ui.live import MAX_READERS, LiveView, summary
from penstock.service.server.ui.pages import Pages
from penstock.service.server.ui.stream import Events, event_answer
from penstock.service.server.ui.tools import Tools
from penstock.service.server.ui.waterfall import waterfall
from penstock.tools.cost.hardware import HARDWARE

SIZES = ("num_blocks", "block_size", "max_sequences", "max_batch_tokens", "num_active_parameters")
"""Facts of an engine that `about` tells; 0 while they are not known."""
Flags = Annotated[dict[str, str | float | bool | None], msgspec.Meta(max_length=64)]


class ToolBody(msgspec.Struct, kw_only=True):
    """Flags of a command, by name without their dashes."""

    flags: Flags
    frames: bool = False
    """Tell what happened when, beside the figures."""
    lane: Annotated[str, msgspec.Meta(max_length=40)] = "main"
    """A later question of the same lane replaces this one."""


class BenchBody(ToolBody, kw_only=True):
    """A load on this server, or on another that the operator allowed."""

    target: Annotated[str, msgspec.Meta(max_length=400)] = ""
    key: Annotated[str, msgspec.Meta(max_length=400)] = ""
    """The key that the other server asks for."""


class MachineBody(msgspec.Struct, kw_only=True):
    measures: bool = True
    """Measure if nothing is known yet."""


class BlocksBody(msgspec.Struct, kw_only=True):
    """Sequences to lay out in memory."""

    sequences: Annotated[int, msgspec.Meta(ge=1, le=64)]
    reserve: Annotated[int, msgspec.Meta(ge=16, le=32_768)]
    block: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    share: bool = True
    finish: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0


class EmptyBody(msgspec.Struct, kw_only=True):
    """Nothing has to be said."""


def _tools(request: Request) -> Tools:
    tools: Tools = request.app.state.pages.tools
    return tools


def _model(request: Request) -> ServedModel:
    """The one that is looked at: named by `?model=`, else the first."""
    return front_of(request).models.find(request.query_params.get("model"))


def _live(request: Request) -> LiveView:
    pages: Pages = request.app.state.pages
    return pages.live(_model(request))


def _tenant(request: Request) -> str | None:
    """Whose requests may be shown; None for everybody's."""
    return None if sees_all(request) else exchange_of(request.scope).tenant


def _client(request: Request) -> str:
    """Who asks, as far as limits care."""
    address = request.client.host if request.client else ""
    tab = request.headers.get("x-penstock-tab", "")[:32]
    return f"{exchange_of(request.scope).tenant or address} {tab}"


async def about(request: Request) -> Json:
    front, model = front_of(request), _model(request)
    facts = model.client.facts
    is_open = facts is not None and model.client.is_ready and model.is_open
    state = "draining" if front.health.is_draining else "ready" if is_open or front.pool is not None else "loading"
    return Json(
        {
            "version": front.version,
            "state": state,
            "model": model.known_name,
            "served": [one.known_name for one in front.models],
            "residents": [resident_value(one) for one in front.models if one.resident is not None],
            "device": facts.device if facts else "",
            "max_context": model.known.max_context,
            **{name: getattr(facts, name, 0) for name in SIZES},
            "can_generate": model.known.can_generate if facts or model.resident is not None else True,
            "memory": facts.memory if facts else (),
            "models": sorted(CONFIGS),
            "devices": list(HARDWARE),
            "bench_targets": front.config.bench_target,
            "is_admin": sees_all(request),
            "has_keys": front.config.is_keyed,
        }
    )


async def events(request: Request) -> Parts:
    """The dashboard's stream, some times a second."""
    pages: Pages = request.app.state.pages
    model, tenant, refusals, power = _model(request), _tenant(request), pages.refusals, pages.power
    live, adapters = pages.live(model), front_of(request).models.adapters
    is_based = adapters is not None and model.client is front_of(request).models.first.client
    if live.num_readers >= MAX_READERS:
        raise busy("many pages watch already; close one", 5)

    async def source() -> Events:
        live.watch()
        place = num_refused = 0
        try:
            while True:
                await live.ticked.wait()
                body, place = live.snapshot(tenant, place)
                _word(model, body["kv"])
                body["refusals"] = refusals.since(num_refused, tenant)
                num_refused = refusals.num_refused
                body["power"] = power.view(body["time_s"])
                body["adapters"] = adapters.view() if adapters is not None and is_based else None
                yield "live", body
        finally:
            live.leave()

    return event_answer(source())


def _word(model: ServedModel, pool: dict[str, Any] | None) -> None:
    """Say how cached prefixes begin, to those who see them."""
    if pool is not None and model.is_open:
        for one in pool["prefixes"]:
            one["text"] = model.tokenizer.decode(one["first_tokens"], skip_special=False)


def _record(request: Request) -> RequestRecord:
    name, tenant = request.path_params["name"], _tenant(request)
    record = _live(request).ledger.find(name)
    if record is None or (tenant is not None and record.tenant != tenant):
        raise not_found("no such request is known: they are kept while a page watches", code="request_not_found")
    return record


async def show_request(request: Request) -> Json:
    model = _model(request)
    found = waterfall(_record(request), tuple(_live(request).steps), time.monotonic())
    differs = found["differs"]
    if differs is not None and sees_all(request) and model.is_open:
        found["differs_text"] = [model.tokenizer.decode([token_id]) for token_id in differs[1:]]
    return Json(found)


async def cancel_request(request: Request) -> Json:
    await body_of(request, EmptyBody)
    record = _record(request)
    call = _live(request).ledger.calls.get(record.request_id)
    if call is not None:
        call.cancel()
        call.abort()
    return Json({"request_id": record.request_id, "was_open": call is not None})


async def list_requests(request: Request) -> Json:
    ledger, tenant = _live(request).ledger, _tenant(request)
    records = [*ledger.open.values(), *reversed(ledger.ended)]
    return Json({"requests": [summary(one) for one in records if tenant is None or one.tenant == tenant]})


async def _progress(request: Request, lane: str, task: dict[str, Any]) -> Events:
    async for line in _tools(request).run(_client(request), lane, task):
        name = "result" if "result" in line else "progress"
        yield name, line[name]


async def simulate(request: Request) -> Parts:
    """Progress as it goes, then the result."""
    body = await body_of(request, ToolBody)
    task = {"task": "simulate", "words": words_of("simulate", body.flags), "frames": body.frames}
    return event_answer(_progress(request, f"simulate {body.lane}", task))


async def plan(request: Request) -> Json:
    body = await body_of(request, ToolBody)
    flags = dict(body.flags)
    model = flags.pop("model", "llama-3.1-8b")
    if model not in CONFIGS:
        raise invalid(f"{str(model)[:60]!r} is no known model", "flags")
    task = {"task": "command", "words": ["plan", str(model), *words_of("plan", flags), "--json"]}
    return Json(await _tools(request).result(_client(request), f"plan {body.lane}", task))


async def bench(request: Request) -> Parts:
    """This very server over its own socket, or one that the operator named: how it comes along, then the report."""
    body = await body_of(request, BenchBody)
    if not body.target:
        host, port = request.scope["server"]
        address = f"{request.scope['scheme']}://{'[' + host + ']' if ':' in host else host}:{port}"
        key = request.headers.get("authorization", "").partition(" ")[2]
    elif body.target in front_of(request).config.bench_target:
        address, key = body.target, body.key
    else:
        message = "pages may load this server and those named by bench-target; that one is neither"
        raise ApiError(ErrorKind.PERMISSION, message, param="target", code="target_not_allowed")
    task = {"task": "bench", "words": [address, *words_of("bench", body.flags)], "key": key}
    return event_answer(_progress(request, f"bench {body.lane}", task))


async def blocks(request: Request) -> Json:
    """The same sequences in reservations and in a real pool's blocks."""
    body = await body_of(request, BlocksBody)
    task = {"task": "blocks", "inputs": msgspec.structs.asdict(body)}
    return Json(await _tools(request).result(_client(request), "blocks", task))


async def show_block(request: Request) -> Json:
    """Who holds a block of the KV cache, and what it begins with."""
    model, name = _model(request), request.path_params["number"]
    found = _live(request).block(int(name), _tenant(request)) if name.isdecimal() and len(name) < 10 else None
    if found is None:
        raise not_found("no such block is known: they are seen while a page watches", code="block_not_found")
    if found["prefix"] is not None:
        _word(model, {"prefixes": [found["prefix"]]})
    return Json(found)


async def fleet(request: Request) -> Json:
    """What serves: this server's models, each an engine of its own. A router before it has a surface of its own."""
    rows = [
        {"name": one.known_name, "state": _state(one)} | one.client.load._asdict() for one in front_of(request).models
    ]
    return Json({"is_router": False, "replicas": rows})


def _state(model: ServedModel) -> str:
    if model.resident is not None and model.state is not Residency.READY:
        return model.state.value
    return "ready" if model.is_alive and model.is_open else "unavailable"


def resident_value(model: ServedModel) -> dict[str, Any]:
    """Where one of several models stands."""
    resident, now = model.resident, time.monotonic()
    if resident is None:
        return {}
    expires_s = resident.expires_s - now
    return {
        **{
            name: getattr(resident, name)
            for name in ("name", "load_s", "num_bytes", "is_pinned", "num_uses", "num_waiting")
        },
        "state": resident.state.value,
        "reason": resident.reason if resident.state is Residency.FAILED else "",
        "phase": resident.phase if resident.state is Residency.LOADING else "",
        "loading_s": now - resident.load_start_s if resident.state is Residency.LOADING else None,
        "is_measured": resident.measured_bytes is not None,
        "expires_s": None if math.isinf(expires_s) or resident.state is not Residency.READY else max(expires_s, 0.0),
        "max_context": model.known.max_context,
        "can_generate": model.known.can_generate,
        "embedding_size": model.known.embedding_size,
    }


async def list_residents(request: Request) -> Json:
    """Every model that is served, whether it is loaded, and what all of them may take."""
    front = front_of(request)
    pool = front.pool
    return Json(
        {
            "models": [resident_value(one) for one in front.models if one.resident is not None],
            "budget_bytes": None if pool is None else pool.budget_bytes,
            "num_bytes": 0 if pool is None else pool.num_bytes,
        }
    )


async def prefixes(request: Request) -> Json:
    """What kept prompts from the prefix cache, by model; null where it is not watched. It is about everybody's prompts."""
    check_admin(request, "prompts of all clients are counted here: ask with an --admin-key")
    models = front_of(request).models
    return Json(
        {
            one.known_name: None
            if one.prefixes is None
            else one.prefixes.as_data() | {"tiers": one.meters.tier_reasons}
            for one in models
        }
    )


async def machine(request: Request) -> Json:
    """What this machine reaches; measured, some seconds long, when first asked for. Null if it is not known and may not be."""
    front, client = front_of(request), _client(request)
    body = await body_of(request, MachineBody)
    known = await _tools(request).result(client, "machine", {"task": "machine", "measures": False})
    if known is not None or not body.measures:
        return Json(known)
    _need_idle(front)
    return Json(await _tools(request).result(client, "machine", {"task": "machine", "measures": True}))


async def profile(request: Request) -> Json:
    """What `penstock profile step --json` prints of the model that is served, by a process of its own beside this one."""
    front, model = front_of(request), _model(request)
    body = await body_of(request, ToolBody)
    words, config = words_of("profile", body.flags), model.client.config.model
    facts = model.client.facts
    if facts is not None and facts.device.startswith("cuda"):
        raise invalid(
            "a GPU's memory is the server's own: run penstock profile step --json on that machine, and open its file here",
            "flags",
        )
    _need_idle(front)
    task = {"task": "profile", "words": words, "model": msgspec.to_builtins(config)}
    return Json(await _tools(request).result(_client(request), "profile", task))


def _need_idle(front: Front) -> None:
    if front.health.num_open:
        message = (
            "answers are being written: what is measured now would be too little; try again when the server is idle"
        )
        raise ApiError(ErrorKind.CONFLICT, message, code="server_busy")
