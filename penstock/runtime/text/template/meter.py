"""Puts the counting into a template: every block of it pays for its own nodes when it is entered.

A block is a run of statements that is executed as a whole: a loop's body, a branch, a macro. Work whose size is only
known when it is done (joining, comparing, slicing) is routed through filters that the sandbox provides under names no
template can spell. Knows nothing of budgets or of chats.
"""

from collections.abc import Sequence
from typing import Any

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

STEP = " step"
CONCATENATE = " concatenate"
COMPARE = " compare"
SLICE = " slice"

MAX_NODES = 10_000
BLOCK_STEPS = 4
"""Entering a block costs about as much as this many nodes."""
CHARACTERS_PER_STEP = 64
"""Literal text that counts as one more step."""

# Fields that hold statements which are executed apart from the node they belong to.
_BLOCKS: dict[type[nodes.Node], tuple[str, ...]] = {
    **dict.fromkeys((nodes.For, nodes.If), ("body", "else_")),
    **dict.fromkeys((nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock), ("body",)),
    **dict.fromkeys((nodes.With, nodes.Block, nodes.Scope), ("body",)),
}

_REFUSED: dict[type[nodes.Node], str] = {
    nodes.Include: "include",
    nodes.Import: "import",
    nodes.FromImport: "import",
    nodes.Extends: "extends",
    nodes.ScopedEvalContextModifier: "autoescape",
}


class RefusedNode(Exception):
    """The template uses a statement that chat templates may not use, or is too long."""


def meter(template: nodes.Template) -> nodes.Template:
    """The same template, counting."""
    count = 0
    for node in template.find_all(nodes.Node):
        count += 1
        if (name := _REFUSED.get(type(node))) is not None:
            raise RefusedNode(f"it uses the statement {name!r}, which chat templates may not use")
    if count > MAX_NODES:
        raise RefusedNode(f"it has {count} parts; chat templates may have {MAX_NODES}")
    _Meter().visit(template)
    template.body.insert(0, _step(template.body))
    return template


class _Meter(NodeTransformer):
    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        super().generic_visit(node, *args, **kwargs)
        for field in _BLOCKS.get(type(node), ()):
            statements = getattr(node, field)
            if statements or field == "body":
                statements.insert(0, _step(statements))
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if node.test is not None:
            # The condition of a filtered loop runs for items that never reach the body.
            node.test = _filtered(STEP, node.test, [nodes.Const(_cost([node.test]))])
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(CONCATENATE, nodes.Tuple(node.nodes, "load", lineno=node.lineno))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        """A comparison with a constant ends with the constant; any other may go through both its sides."""
        self.generic_visit(node)
        is_simple = len(node.ops) == 1 and node.ops[0].op not in ("in", "notin")
        if is_simple and nodes.Const in (type(node.expr), type(node.ops[0].expr)):
            return node
        node.expr = _filtered(COMPARE, node.expr)
        for operand in node.ops:
            operand.expr = _filtered(COMPARE, operand.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(SLICE, node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        """A mapping's key is hashed, all of it."""
        self.generic_visit(node)
        node.key = _filtered(COMPARE, node.key)
        return node


def _filtered(name: str, node: Any, args: Sequence[nodes.Expr] = ()) -> nodes.Expr:
    if name == COMPARE and isinstance(node, nodes.Const):
        return node
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


def _step(statements: Sequence[nodes.Node]) -> nodes.Node:
    lineno = statements[0].lineno if statements else 1
    cost = nodes.Const(_cost(statements), lineno=lineno)
    return nodes.ExprStmt(_filtered(STEP, nodes.Const(None, lineno=lineno), [cost]), lineno=lineno)


def _cost(statements: Sequence[nodes.Node]) -> int:
    """Nodes executed with the block itself, those of blocks inside it left to them."""
    cost = BLOCK_STEPS
    waiting = list(statements)
    while waiting:
        node = waiting.pop()
        cost += 1
        if isinstance(node, nodes.TemplateData):
            cost += len(node.data) // CHARACTERS_PER_STEP
        waiting.extend(node.iter_child_nodes(exclude=_BLOCKS.get(type(node))))
    return cost
