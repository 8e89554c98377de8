"""/v1/batches: many requests in a file, answered while no interactive request needs the engine."""

import asyncio
import time
from typing import Any

import msgspec
from starlette.requests import Request

from penstock.service.edge.paging import page_of
from penstock.service.server.calls.usage import check_bound
from penstock.service.server.front import body_of, caller_of, tenant_of
from penstock.service.server.http.answer import Json
from penstock.service.server.http.faults import ApiError, ErrorKind, invalid, not_found
from penstock.service.server.jobs.endpoints import ENDPOINTS
from penstock.service.server.jobs.files import file_row
from penstock.service.server.jobs.lines import batch_bound
from penstock.service.server.jobs.protocol import BatchBody
from penstock.service.server.jobs.runner import BatchRunner
from penstock.service.server.jobs.service import Jobs
from penstock.service.store import jobs as tables
from penstock.service.store.database import reading, writing
from penstock.service.store.jobs import OPEN, BatchRow

WINDOW_S = 24 * 3600


async def create_batch(request: Request) -> Json:
    jobs: Jobs = request.app.state.jobs
    runner: BatchRunner = request.app.state.batch_runner
    body = await body_of(request, BatchBody)
    caller = caller_of(request)
    tenant = caller.tenant
    if body.endpoint not in ENDPOINTS:
        raise invalid(f"endpoint must be one of {', '.join(ENDPOINTS)}", "endpoint")
    file = await file_row(jobs, body.input_file_id, tenant)
    now = int(time.time())
    expiry = body.output_expires_after
    value = {
        "completion_window": body.completion_window,
        "metadata": body.metadata or {},
        "expires_at": now + WINDOW_S,
        "output_expires_s": None if expiry is None else expiry.seconds,
    }
    text = msgspec.json.encode(value).decode()
    row = BatchRow(jobs.new_id("batch_"), tenant, "validating", now, file.id, body.endpoint, 0, 0, 0, 0, 0, 0, 0, text)
    if caller.most is not None:
        path = jobs.storage.blobs.path(file.id)
        max_context = jobs.responses.front.models.longest_context
        check_bound(caller.most, *await asyncio.to_thread(batch_bound, path, body.endpoint, max_context))
    await jobs.responses.bills.open(row.id, caller)
    await writing(jobs.storage.database, tables.add_batch, row)
    runner.take(row)
    return Json(batch_value(row))


async def retrieve_batch(request: Request) -> Json:
    return Json(batch_value(await _row(request)))


async def list_batches(request: Request) -> Json:
    jobs: Jobs = request.app.state.jobs
    rows = await reading(jobs.storage.database, tables.batches_of, tenant_of(request))
    return Json(page_of([batch_value(row) for row in rows], request.query_params))


async def cancel_batch(request: Request) -> Json:
    runner: BatchRunner = request.app.state.batch_runner
    row = await _row(request)
    if row.status not in OPEN:
        raise ApiError(ErrorKind.CONFLICT, f"the batch is {row.status}; it cannot be cancelled", code="batch_over")
    await runner.cancel(row.id)
    return Json(batch_value(await _row(request)))


async def _row(request: Request) -> BatchRow:
    jobs: Jobs = request.app.state.jobs
    batch_id = request.path_params["id"]
    row = await reading(jobs.storage.database, tables.batch_of, batch_id, tenant_of(request))
    if row is None:
        raise not_found(f"there is no batch {batch_id[:80]!r}", "batch_id")
    return row


def batch_value(row: BatchRow) -> dict[str, Any]:
    kept = msgspec.json.decode(row.value)
    errors = kept.get("errors")
    times = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
    return {
        "id": row.id,
        "object": "batch",
        "endpoint": row.endpoint,
        "model": kept.get("model"),
        "errors": None if errors is None else {"object": "list", "data": errors},
        "input_file_id": row.input_file,
        "completion_window": kept["completion_window"],
        "status": row.status,
        "output_file_id": kept.get("output_file_id"),
        "error_file_id": kept.get("error_file_id"),
        "created_at": row.created_s,
        "expires_at": kept["expires_at"],
        **{f"{name}_at": kept.get(f"{name}_at") for name in times},
        "request_counts": {"total": row.num_total, "completed": row.num_completed, "failed": row.num_failed},
        "usage": {
            "input_tokens": row.num_input,
            "input_tokens_details": {"cached_tokens": row.num_cached},
            "output_tokens": row.num_output,
            "output_tokens_details": {"reasoning_tokens": row.num_reasoning},
            "total_tokens": row.num_input + row.num_output,
        },
        "metadata": kept["metadata"],
    }
