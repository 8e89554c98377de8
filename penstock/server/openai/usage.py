"""What a call used: tokens and times, as answers tell them."""

from typing import Any, NamedTuple

from penstock.server.http.call import Call


class Usage(NamedTuple):
    num_prompt: int
    num_cached: int
    num_output: int
    num_reasoning: int

    @property
    def value(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.num_prompt,
            "completion_tokens": self.num_output,
            "total_tokens": self.num_prompt + self.num_output,
            "prompt_tokens_details": {"cached_tokens": self.num_cached, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": self.num_reasoning,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }


def usage_of(call: Call) -> Usage:
    """A prompt counts once however many choices it has; what was cached of it is told by its first choice."""
    num_choices = call.wishes.params.n
    return Usage(
        num_prompt=sum(map(len, call.prompts)),
        num_cached=sum(writer.num_cached for writer in call.writers[::num_choices]),
        num_output=sum(writer.num_tokens for writer in call.writers),
        num_reasoning=sum(writer.num_reasoning_tokens for writer in call.writers),
    )


def usage_value(call: Call, timings: dict[str, float] | None) -> dict[str, Any]:
    """Usage as answers tell it, with the times of the call if they were asked for."""
    return usage_of(call).value | ({"timings": timings} if timings is not None else {})
