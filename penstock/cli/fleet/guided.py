"""The doctor as a loop: symptom, layer, evidence, remedy, and another look that says what became of it."""

import sys
from collections.abc import Callable, Sequence

from penstock.console.show import printable
from penstock.tools.doctor.finding import Finding, ServiceLayer

MOST_ROUNDS = 50


def guide(
    subject: str,
    look: Callable[[], Sequence[Finding]],
    window_s: float,
    answer: Callable[[str], str] | None = None,
) -> int:
    """Until nothing is wrong, or whoever is asked has had enough. Exit status 1: something is still wrong."""
    ask = answer or (input if sys.stdin is not None and sys.stdin.isatty() else lambda _: "q")
    before: Sequence[Finding] = ()
    for number in range(MOST_ROUNDS):
        print(f"look {number + 1} at {printable(subject) or 'this machine'}, {window_s:g} s")
        found = look()
        _print_layers(found)
        _print_change(before, found)
        if not found:
            print("nothing is wrong")
            return 0
        first = found[0]
        print(f"first: {first.symptom} ({first.layer.name} {first.layer.value})")
        print(f"    seen: {printable(first.evidence)}\n    do:   {printable(first.remedy)}")
        before = found
        if ask("done? Enter looks again, q ends: ").strip().lower().startswith("q"):
            break
    return 1


def _print_layers(found: Sequence[Finding]) -> None:
    words = []
    for layer in ServiceLayer:
        own = [one for one in found if one.layer is layer]
        words.append(f"{layer.name} {layer.value}: {f'{len(own)} wrong' if own else 'ok'}")
    print("    " + "; ".join(words))


def _print_change(before: Sequence[Finding], now: Sequence[Finding]) -> None:
    names = {one.id for one in now}
    for one in before:
        if one.id not in names:
            print(f"    gone: {one.symptom}")
    first = before[0] if before else None
    if first is not None and first.id in names:
        same = next(one for one in now if one.id == first.id)
        print(f"    still there: {first.symptom}; was {printable(first.evidence)}, is {printable(same.evidence)}")
