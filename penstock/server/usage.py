"""What a call used, in tokens. How a dialect words it is the dialect's."""

from typing import NamedTuple

from penstock.server.http.call import Call


class Usage(NamedTuple):
    num_prompt: int
    num_cached: int
    """Prompt tokens that the prefix cache gave."""
    num_output: int
    num_reasoning: int
    num_accepted: int
    """Tokens of the client's prediction that were checked and came true."""
    num_rejected: int
    num_draft: int
    """Drafts checked, whoever guessed them."""
    num_accepted_draft: int


def usage_of(call: Call) -> Usage:
    """A prompt counts once however many choices it has; what was cached of it is known from its first choice."""
    num_choices = call.parameters.sampling.n
    return Usage(
        num_prompt=sum(map(len, call.prompts)),
        num_cached=sum(writer.num_cached for writer in call.writers[::num_choices]),
        num_output=sum(writer.num_tokens for writer in call.writers),
        num_reasoning=sum(writer.num_reasoning_tokens for writer in call.writers),
        num_accepted=sum(writer.predicted[1] for writer in call.writers),
        num_rejected=sum(writer.predicted[0] - writer.predicted[1] for writer in call.writers),
        num_draft=sum(writer.drafted[0] for writer in call.writers),
        num_accepted_draft=sum(writer.drafted[1] for writer in call.writers),
    )
