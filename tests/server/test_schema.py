"""Requests made from our own OpenAPI document, right and wrong ones: none is answered with a fault of ours."""

from contextlib import suppress

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from penstock.service.server.app import ROUTES
from penstock.service.server.http.docs import openapi
from tests.server.bad_input import SLOW, check_error
from tests.server.serving import Server

DOCUMENT = openapi(ROUTES, "0")
for _name in ("ChatBody", "CompletionBody"):
    # Made-up answers need not be long: these here, and those of Ollama's clients below.
    DOCUMENT["components"]["schemas"][_name]["properties"]["max_tokens"] = {"type": "integer", "maximum": 4}
    DOCUMENT["components"]["schemas"][_name]["required"].append("max_tokens")
    DOCUMENT["components"]["schemas"][_name]["properties"].pop("max_completion_tokens", None)
for _path in SLOW:
    del DOCUMENT["paths"][_path]
_BODY = DOCUMENT["components"]["schemas"]["ResponseBody"]
_BODY["properties"]["max_output_tokens"] = {"type": "integer", "maximum": 4}
_BODY.setdefault("required", []).append("max_output_tokens")
DOCUMENT["components"]["schemas"]["MessagesBody"]["properties"]["max_tokens"] = {"type": "integer", "maximum": 4}
DOCUMENT["components"]["schemas"]["Options"]["properties"]["num_predict"] = {
    "type": "integer",
    "minimum": 1,
    "maximum": 4,
}
DOCUMENT["components"]["schemas"]["Options"]["required"] = ["num_predict"]
for _name in ("OllamaChatBody", "GenerateBody"):
    DOCUMENT["components"]["schemas"][_name]["properties"]["options"] = {"$ref": "#/components/schemas/Options"}
    DOCUMENT["components"]["schemas"][_name]["required"].append("options")
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
QUICK = settings(
    max_examples=2,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
    database=None,
    derandomize=True,
)


OPERATIONS = {operation.label: operation for found in SCHEMA.get_all_operations() if (operation := found.ok())}


@pytest.mark.parametrize("label", OPERATIONS)
def test_no_request_is_answered_with_a_fault_of_ours(label: str, server: Server) -> None:
    _check_many(label, server, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("label", OPERATIONS)
def test_none_of_many_requests_is_answered_with_a_fault_of_ours(label: str, server: Server) -> None:
    _check_many(label, server, settings(QUICK, max_examples=1000, derandomize=False))


def _check_many(label: str, server: Server, how: settings) -> None:
    for mode in schemathesis.GenerationMode:

        @how
        @given(case=OPERATIONS[label].as_strategy(generation_mode=mode))
        def law(case: schemathesis.Case) -> None:
            _check(case, server)

        with suppress(Unsatisfiable):  # a route that takes nothing cannot be asked wrongly
            law()


def _check(case: schemathesis.Case, server: Server) -> None:
    response = case.call(base_url=server.url, timeout=60)  # whoever forgets to limit an answer gets a long one
    assert response.status_code < 500 or (response.status_code == 504 and "deadline" in response.text), response.text
    if response.status_code >= 400:
        check_error(case.path, response.json())


def test_the_document_says_what_every_route_takes(server: Server) -> None:
    document = httpx.get(server.url + "/openapi.json").json()
    for route in ROUTES:
        assert route.method.lower() in document["paths"][route.path.replace(":path", "")]
