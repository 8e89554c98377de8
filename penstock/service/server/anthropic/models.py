"""What is served, as Anthropic's clients ask for it: /v1/models with an `anthropic-version` header."""

from datetime import UTC, datetime
from typing import Any

from penstock.service.server.front import Front
from penstock.service.server.served import ServedModel


def anthropic_models(front: Front) -> dict[str, Any]:
    data = [anthropic_model(model) for model in front.models.known]
    return {
        "data": data,
        "has_more": False,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }


def anthropic_model(model: ServedModel) -> dict[str, Any]:
    return {
        "type": "model",
        "id": model.name,
        "display_name": model.name,
        "created_at": datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": model.max_context,
        "max_tokens": model.max_context,
    }
