"""Why a request does not get its model, as its client is told: what is wrong, and what to do."""

import math
import re

from penstock.errors import PenstockError
from penstock.service.server.http.faults import NO_RETRY, ApiError, ErrorKind, busy
from penstock.service.server.pool.resident import Residency, Resident

MIB = 2**20


def crowded(resident: Resident) -> ApiError:
    return busy(f"{resident.num_waiting:,} requests wait for {resident.name!r} to be loaded; try later", 5)


def not_yet(resident: Resident, eta_s: float | None) -> ApiError:
    """The request waited as long as it may."""
    if resident.state is Residency.LOADING:
        message = f"{resident.name!r} is still being loaded; try again in a moment"
        return busy(message, 1 if eta_s is None else max(math.ceil(eta_s), 1), code="model_loading")
    message = f"there is no room for {resident.name!r} now: other models are in use; try later"
    return busy(message, 10, code="no_room_for_model")


def too_large(resident: Resident, budget_bytes: int | None) -> ApiError:
    message = (
        f"{resident.name!r} takes about {resident.num_bytes // MIB:,} MiB; the models of this server may take "
        f"{(budget_bytes or 0) // MIB:,} MiB together, those that never leave included; ask for another"
    )
    return ApiError(ErrorKind.UNAVAILABLE, message, param="model", code="model_does_not_fit", headers=NO_RETRY)


def load_failed(resident: Resident, retry_after_s: float) -> ApiError:
    """Also of a model that was loaded and must not be served."""
    is_damaged = bool(resident.fault) and resident.reason == resident.fault
    what = "is not served" if is_damaged else "could not be loaded"
    code = "model_damaged" if is_damaged else "model_load_failed"
    return busy(f"{resident.name!r} {what}: {resident.reason}", max(math.ceil(retry_after_s), 1), code=code)


def reason_of(error: BaseException) -> str:
    """Why a load failed, as clients may read it: names of files, not their folders."""
    if not isinstance(error, PenstockError):
        return "the fault is ours"
    return re.sub(r"(?<![\w:/])/(?:[^\s/:;,']+/)+", "", str(error))
