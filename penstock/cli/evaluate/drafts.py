"""Drafters tried on a text, and what to serve with."""

from penstock.cli.evaluate.config import Config
from penstock.cli.loading import open_llm
from penstock.config import EngineConfig, SpeculationConfig
from penstock.console.show import print_json, print_table
from penstock.tools.measure.drafts import measure_drafts

DEFAULT_TOKENS = 1024
WORTHWHILE = 1.02
"""Times as fast as without drafts, below which they are not worth it."""


def measure_drafts_on(config: Config, text: str) -> int:
    speculation = (
        SpeculationConfig("auto", config.draft_model) if config.draft_model else SpeculationConfig("prediction")
    )
    engine = EngineConfig(config.model, config.cache, config.scheduler, config.parallel, speculation)
    with open_llm(engine) as llm:
        from penstock.offline.training import trial_drafter

        token_ids = llm.files.tokenizer.encode(text, special=False)[: config.tokens or DEFAULT_TOKENS]
        others = {name: trial_drafter(llm, name, token_ids) for name in config.drafter}
        found = measure_drafts(llm.engine, token_ids, others)
    best = max(found, key=lambda name: found[name].gain)
    columns = ("drafter", "acceptance", "tokens a step", "times as fast")
    rows = [
        (name, f"{one.acceptance:.3f}", f"{one.tokens_per_step:.2f}", f"{one.gain:.2f}") for name, one in found.items()
    ]
    if config.json:
        values = {name: one._asdict() | {"gain": round(one.gain, 3)} for name, one in found.items()}
        print_json({"drafters": values, "best": best if found[best].gain > WORTHWHILE else "off"})
        return 0
    print_table(columns, rows)
    print(verdict(best, found[best].gain, best if best in config.drafter else "auto"))
    return 0


def verdict(best: str, gain: float, flag: str) -> str:
    """What to serve with, by the best drafter of a trial."""
    if gain <= WORTHWHILE:
        return (
            f"use --speculate off: no drafter pays on this text; the best, {best}, is {gain:.2f} times as fast as none"
        )
    return f"use --speculate {flag}: {best} gains most on this text, {gain:.2f} times as fast"
