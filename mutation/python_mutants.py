"""Makes the mutants of one Python file: its text with one small bug, and a key that survives moves of lines."""

import ast
import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator

from .python_operators import OURS

# Those operators of cosmic-ray that make bugs which people make. The other operators mostly make code that cannot run at all.
COMPARISONS = (
    ("Eq", "NotEq"), ("NotEq", "Eq"), ("Is", "IsNot"), ("IsNot", "Is"),
    ("Lt", "LtE"), ("Lt", "GtE"), ("LtE", "Lt"), ("LtE", "Gt"),
    ("Gt", "GtE"), ("Gt", "LtE"), ("GtE", "Gt"), ("GtE", "Lt"),
)  # fmt: skip
BINARY = (
    ("Add", "Sub"), ("Sub", "Add"), ("Mul", "Div"), ("Div", "Mul"), ("FloorDiv", "Mul"), ("Mod", "Mul"),
    ("BitOr", "BitAnd"), ("BitAnd", "BitOr"), ("LShift", "RShift"), ("RShift", "LShift"), ("Pow", "Mul"),
)  # fmt: skip
OTHERS = (
    "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd", "NumberReplacer",
    "ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_USub_UAdd", "ZeroIterationForLoop",
)  # fmt: skip
THEIRS = (
    *(f"ReplaceComparisonOperator_{before}_{after}" for before, after in COMPARISONS),
    *(f"ReplaceBinaryOperator_{before}_{after}" for before, after in BINARY),
    *OTHERS,
)
COMMENT = re.compile(r"\s{2}# .*$")
# Named arguments that change nothing of what the product does. The first three are texts for people. mypy checks `kw_only`.
# `strict` is the assertion of `zip` that two lists have the same length.
NO_EFFECT = ("description", "examples", "help", "kw_only", "strict")
LOGS = ("log", "logger", "logging")


@dataclass(frozen=True)
class Mutant:
    path: str
    key: str
    line: int
    code: str
    function: str = ""  # the dotted name of the function whose body differs; empty if something outside of functions differs


Place = tuple[tuple[int, int], tuple[int, int]]


def operators() -> list[Operator]:
    return [*(kind() for kind in OURS), *(get_operator(f"core/{name}")() for name in THEIRS)]


def mutants(path: str, source: str) -> list[Mutant]:
    """Returns all mutants of a file. Two operators that make the same text make one mutant."""
    left_alone = list(_left_alone(source))
    starts = _line_starts(source)
    kinds = operators()
    found: dict[str, Mutant] = {}
    for node in ast_nodes(get_ast(source)):
        if node.type == "operator" and node.parent.type in ("parameters", "param"):
            continue  # the star before named parameters is not a multiplication
        for operator in kinds:
            for index, (start, end) in enumerate(operator.mutation_positions(node)):
                if any(first <= start and end <= last for first, last in left_alone):
                    continue
                code = _changed(source, starts, node, operator, index)
                if code != source and _compiles(code):
                    function = _function(source, start, end)
                    found.setdefault(code, Mutant(path, _key(source, code, start[0]), start[0], code, function))
    return sorted(found.values(), key=lambda mutant: (mutant.line, mutant.key))


def _changed(source: str, starts: list[int], node: Any, operator: Operator, index: int) -> str:
    """Returns the source with one change. Only the node is copied, because walking the whole tree per mutant takes minutes."""
    parent, node.parent = node.parent, None
    one = copy.deepcopy(node)
    node.parent = one.parent = parent
    line, column = node.get_start_pos_of_prefix()
    last_line, last_column = node.end_pos
    changed = operator.mutate(one, index).get_code()
    return source[: starts[line - 1] + column] + changed + source[starts[last_line - 1] + last_column :]


def _line_starts(source: str) -> list[int]:
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def _compiles(code: str) -> bool:
    try:
        compile(code, "mutant", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def _key(source: str, code: str, line: int) -> str:
    """Returns a key that names the function and the change, without line numbers. Equal changes in one function share a key."""
    before, after = source.splitlines(), code.splitlines()
    while before and after and before[0] == after[0]:
        del before[0], after[0]
    while before and after and before[-1] == after[-1]:
        del before[-1], after[-1]
    return f"{_scope(source, line)}: {_one_line(before)} => {_one_line(after)}"


def _one_line(lines: list[str]) -> str:
    """Returns the lines without their comments, because comments may change while the code stays."""
    return " ".join(" ".join(COMMENT.sub("", line) for line in lines).split())


@cache
def _tree(source: str) -> ast.Module:
    return ast.parse(source)


def _scope(source: str, line: int) -> str:
    """Returns the dotted name of the function or class around a line, or `module`."""
    names: list[str] = []
    body: list[ast.stmt] = _tree(source).body
    while True:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.lineno <= line <= node.end_lineno:
                names.append(node.name)
                body = node.body
                break
        else:
            return ".".join(names) or "module"


def _function(source: str, start: tuple[int, int], end: tuple[int, int]) -> str:
    """Returns the dotted name of the outermost function whose body has this place. Defaults and decorators are not in a body."""
    names: list[str] = []
    body: list[ast.stmt] = _tree(source).body
    while True:
        for node in body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            first, last = node.body[0], node.body[-1]
            if (first.lineno, first.col_offset) <= start and end <= (last.end_lineno or 0, (last.end_col_offset or 0) + 1):
                names.append(node.name)
                if not isinstance(node, ast.ClassDef):
                    return ".".join(names)
                body = node.body
                break
        else:
            return ""


def _left_alone(source: str) -> Iterator[Place]:
    """Yields places where a change is not a bug: annotations and types, imports, log lines, crash points, texts of assertions,
    statements that are never reached, and some named arguments. They are excluded as kinds, because nothing that the product does
    depends on them.
    """
    for node in ast.walk(_tree(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield _place(node)
        elif isinstance(node, ast.AnnAssign | ast.arg) and node.annotation is not None:
            yield from _annotation(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
            yield _place(node.returns)
        elif isinstance(node, ast.Assert) and node.msg is not None:
            yield _place(node.msg)
        elif isinstance(node, ast.Expr) and (_logs(node.value) or _calls(node.value, "crash_point")):
            yield _place(node)  # a crash point does nothing unless a test names it
        elif isinstance(node, ast.Raise) and node.exc is not None and _calls(node.exc, "AssertionError"):
            yield _place(node)  # the code says that this line is never reached
        elif isinstance(node, ast.Call) and _calls(node, "cast", "TypeVar"):
            yield _place(node.args[0])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("read", "recv"):
            yield from map(_place, node.args)  # the size of a buffer: it changes how many reads there are, not what is read
        elif isinstance(node, ast.Assign) and _type_alias(node.value):
            yield _place(node.value)
        elif isinstance(node, ast.keyword) and node.arg in NO_EFFECT:
            yield _place(node)


def _annotation(node: ast.expr) -> Iterator[Place]:
    """Yields all of an annotation, except for the limits in `Annotated[…]`, which are checked at run time."""
    limits = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
    if not limits:
        yield _place(node)
        return
    for each in ast.walk(node):
        if isinstance(each, ast.Name | ast.Constant) and not any(each in ast.walk(limit) for limit in limits):
            yield _place(each)
        elif isinstance(each, ast.BinOp) and not any(each in ast.walk(limit) for limit in limits):
            yield _place(each.right)


def _calls(node: ast.expr, *names: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def _logs(node: ast.expr) -> bool:
    call = node.value if isinstance(node, ast.Await) else node
    if not isinstance(call, ast.Call):
        return False
    whole = call.func
    while isinstance(whole, ast.Attribute | ast.Call):
        whole = whole.value if isinstance(whole, ast.Attribute) else whole.func
    return isinstance(whole, ast.Name) and whole.id in LOGS


def _type_alias(node: ast.expr) -> bool:
    """Returns whether a node is `A | B | C` of class names, or `Literal[…]`."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Name) and node.value.id == "Literal"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _type_alias(node.left) and _type_alias(node.right)
    return isinstance(node, ast.Name) and node.id[:1].isupper() and not node.id.isupper()


def _place(node: ast.AST) -> Place:
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
