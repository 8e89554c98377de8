"""Calculators, advice, quizzes: what is computed at once, behind the pages that teach."""

from dataclasses import asdict
from typing import Annotated, Any

import msgspec
from starlette.requests import Request

from penstock.errors import ConfigError
from penstock.service.server.front import body_of
from penstock.service.server.http.answer import Json
from penstock.service.server.http.faults import invalid, not_found
from penstock.tools.advise.data import load
from penstock.tools.advise.lint import lint, setup_of
from penstock.tools.advise.quizzes import AREAS, questions
from penstock.tools.advise.trees import TREES
from penstock.tools.calculate.table import CALCULATORS, calculate, describe, inputs_of


class CalculateBody(msgspec.Struct, kw_only=True):
    inputs: Annotated[dict[str, Any], msgspec.Meta(max_length=64)]


class LintBody(msgspec.Struct, kw_only=True):
    settings: Annotated[dict[str, str | float | bool | None], msgspec.Meta(max_length=64)]


async def list_calculators(request: Request) -> Json:
    return Json({"calculators": [describe(name) for name in CALCULATORS]})


async def run_calculator(request: Request) -> Json:
    body = await body_of(request, CalculateBody)
    name = request.path_params["name"]
    if name not in CALCULATORS:
        raise not_found(f"there is no calculator {name[:40]!r}")
    try:
        return Json(calculate(name, inputs_of(name, body.inputs)))
    except ConfigError as error:
        raise invalid(str(error), "inputs") from None


async def advice(request: Request) -> Json:
    """Trees, checklists, the cheat sheet and the linter's rules, as data to draw."""
    return Json(
        {
            "trees": [asdict(tree) for tree in TREES.values()],
            "checklists": load("checklists"),
            "cheatsheet": load("cheatsheet"),
            "glossary": load("glossary"),
            "rules": load("lint"),
        }
    )


async def check_settings(request: Request) -> Json:
    body = await body_of(request, LintBody)
    try:
        return Json({"findings": [asdict(one) for one in lint(setup_of(body.settings))]})
    except (ConfigError, TypeError, ValueError) as error:
        raise invalid(str(error), "settings") from None


async def list_quizzes(request: Request) -> Json:
    return Json({"areas": AREAS})


async def show_quiz(request: Request) -> Json:
    area, seed = request.path_params["name"], request.query_params.get("seed", "0")
    if area not in AREAS:
        raise not_found(f"there is no quiz on {area[:40]!r}")
    number = int(seed) if seed.isdecimal() and len(seed) < 10 else 0
    return Json({"questions": [asdict(one) for one in questions(area, number)]})
