"""What there is to advise, as data: trees, checklists, the cheat sheet, quizzes, a glossary. Read by the modules beside it."""

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def load(name: str) -> Any:
    return json.loads(files(__name__).joinpath(f"{name}.json").read_text(encoding="utf-8"))
