"""What will be sent: the arrivals and lengths of a workload or a trace, as conversations of named prompt segments."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

from penstock.tools.bench.client.prompts import Segment
from penstock.tools.workload.trace import Trace
from penstock.tools.workload.workload import Recipe


@dataclass(frozen=True, slots=True)
class Turn:
    """A user's next message and the length of the answer to it."""

    segments: tuple[Segment, ...]
    num_answer: int

    @property
    def num_prompt(self) -> int:
        return sum(segment.num_tokens for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Ask:
    """A conversation: mostly of one turn. A later turn is sent `think_s` after the answer before it."""

    arrival_s: float
    turns: tuple[Turn, ...]
    think_s: float = 0.0

    @property
    def histories(self) -> list[int]:
        """Tokens before each turn."""
        return list(accumulate((turn.num_prompt + turn.num_answer for turn in self.turns[:-1]), initial=0))


@dataclass(frozen=True, slots=True)
class TrafficPlan:
    asks: tuple[Ask, ...]

    @property
    def num_requests(self) -> int:
        return sum(len(ask.turns) for ask in self.asks)

    def part(self, num_turns: Mapping[int, int]) -> "TrafficPlan":
        """The first so many turns of each conversation, by its place."""
        asks = (replace(ask, turns=ask.turns[: num_turns.get(place, 0)]) for place, ask in enumerate(self.asks))
        return TrafficPlan(tuple(ask for ask in asks if ask.turns))

    def num_prompt_tokens(self) -> int:
        """Histories included."""
        return sum(sum(ask.histories) + sum(turn.num_prompt for turn in ask.turns) for ask in self.asks)

    def num_repeated(self) -> int:
        """Prompt tokens that the plan itself sends again, which even a cold cache may answer."""
        seen: set[tuple[str, str]] = set()
        repeated = 0
        for ask in self.asks:
            repeated += sum(ask.histories)
            before = ""
            for segment in ask.turns[0].segments:
                names = (before, segment.name)
                repeated += segment.num_tokens if names in seen else 0
                seen.add(names)
                before = segment.name
        return repeated


def plan_of_recipe(recipe: Recipe, seed: int, name: str = "") -> TrafficPlan:
    """The same seed as a simulation's gives the same arrivals and lengths."""
    think_s = recipe.conversation.think_s if recipe.conversation else 0.0
    asks = []
    for number, outline in enumerate(recipe.outlines(seed)):
        start = [Segment(f"{name}own {number}", outline.num_own)]
        if outline.prefix is not None and recipe.prefix is not None:
            start.insert(0, Segment(f"{name}shared {outline.prefix}", recipe.prefix.num_tokens))
        later = [
            Turn((Segment(f"{name}own {number} turn {turn}", num_own),), num_answer)
            for turn, (num_own, num_answer) in enumerate(outline.later, 1)
        ]
        asks.append(Ask(outline.arrival_s, (Turn(tuple(start), outline.num_answer), *later), think_s))
    return TrafficPlan(tuple(asks))


def plan_of_trace(trace: Trace, name: str = "") -> TrafficPlan:
    asks = []
    for number, row in enumerate(trace.rows()):
        size = trace.block_size
        blocks = row.blocks[: row.prompt_length // size] if trace.names_answers else row.blocks
        segments = [Segment(f"{name}block {block}", size) for block in blocks]
        left = row.prompt_length - size * len(segments)
        if left < 0:
            segments[-1] = Segment(segments[-1].name, size + left)
        elif left:
            segments.append(Segment(f"{name}own {number}", left))
        asks.append(Ask(row.time_s, (Turn(tuple(segments), row.answer_length),)))
    return TrafficPlan(tuple(asks))
