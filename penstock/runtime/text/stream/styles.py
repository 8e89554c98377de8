"""The table of reasoning styles, and which one a chat template implies."""

from penstock.runtime.text.stream.harmony import HarmonyStyle
from penstock.runtime.text.stream.reasoning import ReasoningStyle, TaggedStyle

STYLES: dict[str, ReasoningStyle] = {
    style.name: style
    for style in (
        # Most specific first: this is also the order in which a template is looked through.
        HarmonyStyle(),
        TaggedStyle("seed", ("<seed:think>",), ("</seed:think>",)),
        TaggedStyle("magistral", ("[THINK]",), ("[/THINK]",)),
        TaggedStyle(
            "granite",
            ("Here is my thought process:", "Here's my thought process:"),
            ("Here is my response:", "Here's my response:"),
        ),
        TaggedStyle("think", ("<think>",), ("</think>",)),
    )
}

_SIGNS = {
    "harmony": "<|channel|>",
    "seed": "<seed:think>",
    "magistral": "[THINK]",
    "granite": "my thought process:",
    "think": "</think>",
}
"""A text that a style's chat template contains."""


def style_of_template(source: str) -> ReasoningStyle | None:
    """The style in which a model with this chat template reasons; None where it shows no sign of any."""
    # Granite's prompt quotes its phrases: "Write your thoughts after 'Here is my thought process:'".
    return next((style for name, style in STYLES.items() if _SIGNS[name] in source), None)
