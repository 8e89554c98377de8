"""The page of what is supported says what the code does."""

from pathlib import Path

from tools.dialects import page


def test_the_page_is_current() -> None:
    written = Path(__file__).parents[2] / "docs" / "DIALECTS.md"
    assert written.read_text() == page(), "python -m tools.dialects > docs/DIALECTS.md"
