"""What a call used, as OpenAI's answers have it."""

from typing import Any

from penstock.service.server.http.call import Call
from penstock.service.server.usage import usage_of, what_is_forgotten


def usage_value(call: Call, timings: dict[str, float] | None) -> dict[str, Any]:
    """With the times of the call, and why its prompt was not found in the cache, if they were asked for."""
    usage = usage_of(call)
    value: dict[str, Any] = {
        "prompt_tokens": usage.num_prompt,
        "completion_tokens": usage.num_output,
        "total_tokens": usage.num_prompt + usage.num_output,
        "prompt_tokens_details": {
            "cached_tokens": usage.num_cached,
            "cache_write_tokens": usage.num_written,
            "audio_tokens": 0,
            **what_is_forgotten(call),
        },
        "completion_tokens_details": {
            "reasoning_tokens": usage.num_reasoning,
            "audio_tokens": 0,
            "accepted_prediction_tokens": usage.num_accepted,
            "rejected_prediction_tokens": usage.num_rejected,
        },
    }
    tiers = [
        sum(writer.from_tiers[place] for writer in call.writers[:: call.parameters.sampling.n]) for place in (0, 1)
    ]
    if any(tiers):
        value["prompt_tokens_details"]["cached_tokens_by_tier"] = dict(zip(("host", "disk"), tiers))
    if timings is None:
        return value
    drafts = {"draft_tokens": usage.num_draft, "accepted_draft_tokens": usage.num_accepted_draft}
    if (miss := call.writers[0].cache_miss) != "":
        value["prompt_tokens_details"]["cache_miss_reason"] = miss
    return value | {"timings": timings | (drafts if usage.num_draft else {})}
