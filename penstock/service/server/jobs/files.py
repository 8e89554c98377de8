"""/v1/files: what clients leave with us, and what batches leave for them."""

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any, BinaryIO

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from penstock.service.edge.paging import page_of
from penstock.service.server.front import tenant_of
from penstock.service.server.http.answer import Json, Parts
from penstock.service.server.http.body import BoundedRequest
from penstock.service.server.http.faults import ApiError, ErrorKind, invalid, not_found
from penstock.service.server.jobs.service import Jobs
from penstock.service.store import jobs as tables
from penstock.service.store.database import reading, writing
from penstock.service.store.jobs import FileRow

MAX_FILE_BYTES = 200 << 20
PURPOSES = ("batch", "user_data", "assistants", "fine-tune", "vision", "evals")
EXPIRES_S = (3600, 2_592_000)
PART_BYTES = 1 << 20
QUOTA_BYTES = 8 << 30
"""Bytes that one key may keep, batches' answers included."""
QUOTA_FILES = 10_000


async def upload_file(request: Request) -> Json:
    """A multipart form with `file` and `purpose`. Nothing of it is kept unless all of it is."""
    jobs: Jobs = request.app.state.jobs
    claimed = request.headers.get("content-length", "")
    if claimed.isdecimal():
        if int(claimed[:20]) > MAX_FILE_BYTES + PART_BYTES:
            raise ApiError(ErrorKind.TOO_LARGE, f"files have at most {MAX_FILE_BYTES:,} bytes; split it", param="file")
        jobs.storage.blobs.check_room(int(claimed[:20]))
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise invalid("send the file as a multipart form", "file", "invalid_content_type")
    try:
        bounded = BoundedRequest(request, MAX_FILE_BYTES + PART_BYTES)
        async with bounded.form(max_files=1, max_fields=16) as form:
            upload, purpose = form.get("file"), form.get("purpose")
            if not isinstance(upload, UploadFile):
                raise invalid("file is missing; send it", "file", "missing_required_parameter")
            if purpose not in PURPOSES:
                raise invalid(f"purpose must be one of {', '.join(PURPOSES)}", "purpose")
            expires_s = _expiry(form.get("expires_after[seconds]"))
            row = await asyncio.to_thread(
                keep_file, jobs, tenant_of(request), upload.file, upload.filename or "file", str(purpose), expires_s
            )
    except HTTPException as error:
        raise invalid(f"the form cannot be read: {str(error.detail)[:100]}", "file") from None
    return Json(file_value(row))


def keep_file(jobs: Jobs, tenant: str, source: BinaryIO, filename: str, purpose: str, expires_s: int | None) -> FileRow:
    """Copy what is there to read into a file of ours. Blocks."""
    file_id = jobs.new_id("file-")
    check_quota(jobs, tenant)
    num_bytes = 0
    with jobs.storage.blobs.writer(file_id) as target:
        while part := source.read(PART_BYTES):
            num_bytes += len(part)
            if num_bytes > MAX_FILE_BYTES:
                raise ApiError(
                    ErrorKind.TOO_LARGE, f"files have at most {MAX_FILE_BYTES:,} bytes; split it", param="file"
                )
            target.write(part)
    row = FileRow(file_id, tenant, filename[:512], purpose, num_bytes, int(time.time()), expires_s)
    jobs.storage.database.write(lambda transaction: tables.add_file(transaction, row)).result()
    return row


def check_quota(jobs: Jobs, tenant: str) -> None:
    """Blocks."""
    kept = jobs.storage.database.read(lambda transaction: tables.kept_by(transaction, tenant)).result()
    if kept.num_bytes >= QUOTA_BYTES or kept.num_files >= QUOTA_FILES:
        message = (
            f"this key keeps {kept.num_files:,} files of {kept.num_bytes:,} bytes; at most {QUOTA_FILES:,} and "
            f"{QUOTA_BYTES:,} are kept; delete some"
        )
        raise ApiError(ErrorKind.QUOTA, message, param="file", code="file_quota_exceeded")


async def list_files(request: Request) -> Json:
    jobs: Jobs = request.app.state.jobs
    rows = await reading(jobs.storage.database, tables.files_of, tenant_of(request))
    purpose = request.query_params.get("purpose")
    values = [file_value(row) for row in rows if purpose in (None, row.purpose)]
    return Json(page_of(values, request.query_params))


async def retrieve_file(request: Request) -> Json:
    return Json(file_value(await file_row(request.app.state.jobs, request.path_params["id"], tenant_of(request))))


async def file_content(request: Request) -> Parts:
    jobs: Jobs = request.app.state.jobs
    row = await file_row(jobs, request.path_params["id"], tenant_of(request))
    headers = [(b"content-type", b"application/octet-stream"), (b"content-length", b"%d" % row.num_bytes)]
    return Parts(_parts(jobs.storage.blobs.path(row.id).open("rb")), headers)


async def delete_file(request: Request) -> Json:
    jobs: Jobs = request.app.state.jobs
    row = await file_row(jobs, request.path_params["id"], tenant_of(request))
    if jobs.is_in_use(row.id):
        raise ApiError(ErrorKind.CONFLICT, "a batch is reading this file; cancel it first", code="file_in_use")
    await writing(jobs.storage.database, tables.delete_file, row.id)
    jobs.storage.blobs.delete(row.id)
    return Json({"id": row.id, "object": "file", "deleted": True})


async def file_row(jobs: Jobs, file_id: str, tenant: str) -> FileRow:
    row = await reading(jobs.storage.database, tables.file_of, file_id, tenant)
    if row is None:
        raise not_found(f"there is no file {file_id[:80]!r}", "file_id")
    return row


def file_value(row: FileRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "object": "file",
        "bytes": row.num_bytes,
        "created_at": row.created_s,
        "expires_at": row.expires_s,
        "filename": row.filename,
        "purpose": row.purpose,
        "status": "processed",
        "status_details": None,
    }


async def _parts(file: BinaryIO) -> AsyncGenerator[bytes, None]:
    with file:
        while part := await asyncio.to_thread(file.read, PART_BYTES):
            yield part


def _expiry(given: Any) -> int | None:
    if given is None:
        return None
    if not isinstance(given, str) or not given.isdecimal() or not EXPIRES_S[0] <= int(given[:9]) <= EXPIRES_S[1]:
        raise invalid(f"expires_after.seconds must be from {EXPIRES_S[0]:,} to {EXPIRES_S[1]:,}", "expires_after")
    return int(time.time()) + int(given)
