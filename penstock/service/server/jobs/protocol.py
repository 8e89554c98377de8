"""What clients of the batch API may send, as types."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from penstock.service.server.openai.protocol import Name
from penstock.service.server.responses.protocol import Metadata


class OutputExpiry(Struct, kw_only=True):
    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=3600, le=2_592_000)]


class BatchBody(Struct, kw_only=True):
    """A batch of requests that a file holds."""

    input_file_id: Name
    endpoint: Name
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: OutputExpiry | None = None
