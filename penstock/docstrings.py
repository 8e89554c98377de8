"""What a dataclass says of its fields: the docstring under each, which Python itself throws away. Knows no command line."""

import ast
import inspect
from dataclasses import is_dataclass
from functools import cache
from itertools import pairwise


@cache  # the class is searched for in the text of its whole module
def field_docstrings(owner: type) -> dict[str, str]:
    """The docstring under each field of a dataclass, those it inherits included, each on one line."""
    found: dict[str, str] = {}
    for base in reversed([base for base in owner.__mro__ if is_dataclass(base)]):
        source = inspect.getsource(base)
        # A class made inside a function is indented, and only an enclosing statement makes that a program.
        tree = ast.parse(f"if True:\n{source}" if source[0].isspace() else source)
        declaration = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
        for field, text in pairwise(declaration.body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(docstring))):
                    found[name] = " ".join(docstring.split())
    return found
