"""/docs and /openapi.json: the route table and the body types, written out. The page needs nothing from elsewhere."""

import html
import inspect
import re
from typing import Any

import msgspec
from starlette.requests import Request

from penstock.service.server.http.answer import Json, Plain

ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def openapi(routes: Any, version: str) -> dict[str, Any]:
    bodies = [route.body for route in routes if route.body is not None]
    schemas, components = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    by_body = dict(zip(bodies, schemas, strict=True))
    error = {"description": "Error", "content": {"application/json": {"schema": ERROR_SCHEMA}}}
    paths: dict[str, Any] = {}
    for route in routes:
        operation: dict[str, Any] = {
            "summary": route.help,
            "operationId": route.handler.__name__,
            "responses": {"200": {"description": "Answer"}, "4XX": error, "503": error},
        }
        if route.body is not None:
            schema = by_body[route.body]
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        names = re.findall(r"\{(\w+)", route.path)
        if names:
            operation["parameters"] = [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
            ]
        paths.setdefault(route.path.replace(":path", ""), {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": version},
        "paths": paths,
        "components": {"schemas": components},
    }


async def document(request: Request) -> Json:
    return Json(openapi(request.app.state.routes, request.app.state.front.version))


async def page(request: Request) -> Plain:
    rows = []
    for route in request.app.state.routes:
        fields = ""
        if route.body is not None:
            names = ", ".join(
                f"<b>{html.escape(field.encode_name)}</b>" if field.required else html.escape(field.encode_name)
                for field in msgspec.structs.fields(route.body)
            )
            about = html.escape((inspect.getdoc(route.body) or "").split("\n")[0])
            fields = f"<details><summary>fields</summary><p>{about}</p><p>{names}</p></details>"
        rows.append(
            f"<tr><td>{route.method}</td><td><code>{html.escape(route.path)}</code></td>"
            f"<td>{html.escape(route.help)}{fields}</td></tr>"
        )
    text = (
        "<!doctype html><meta charset=utf-8><title>Penstock</title>"
        "<style>body{font:16px/1.5 system-ui;margin:2rem auto;max-width:60rem;padding:0 1rem;color-scheme:light dark}"
        "td{padding:.3rem .8rem;vertical-align:top}</style>"
        f"<h1>Penstock</h1><p>The types of all fields: <a href=/openapi.json>openapi.json</a></p>"
        f"<table>{''.join(rows)}</table>"
    )
    return Plain(text.encode(), "text/html; charset=utf-8")
