"""What the routes of the Responses API share: what is kept, and what is being made while nobody waits."""

from dataclasses import dataclass

from penstock.service.server.front import Front
from penstock.service.server.http.relay import random_hex
from penstock.service.server.jobs.bills import Bills
from penstock.service.server.responses.background import BackgroundResponses
from penstock.service.server.responses.kept import KeptResponses
from penstock.service.store.database import Database


@dataclass(frozen=True, slots=True)
class Responses:
    front: Front
    kept: KeptResponses
    background: BackgroundResponses
    bills: Bills


def make_responses(front: Front, database: Database) -> Responses:
    return Responses(front, KeptResponses(database), BackgroundResponses(front), Bills(database))


def new_response_id() -> str:
    return f"resp_{random_hex()}"
