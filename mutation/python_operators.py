"""Kinds of small bugs that cosmic-ray does not make: a forgotten element, condition, argument or statement, or a wrong word."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from cosmic_ray.operators.operator import Example, Operator
from parso.python.tree import Name

Position = tuple[tuple[int, int], tuple[int, int]]


def text(node: Any, code: str) -> Any:
    """Returns a leaf with this code in the node's place; the space before the node is kept."""
    return Name(code, node.start_pos, prefix=node.get_first_leaf().prefix)


def bare(node: Any) -> str:
    return str(node.get_code(include_prefix=False))


class _Choices(Operator):
    """An operator that replaces a node by one of several texts."""

    def choices(self, node: Any) -> list[str]:
        raise NotImplementedError

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        for _ in self.choices(node):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        return text(node, self.choices(node)[index])


class DropElement(_Choices):
    """Drops one element of a tuple, list or set: `("warm", "parked")` becomes `("warm",)`."""

    def choices(self, node: Any) -> list[str]:
        if node.type != "atom" or len(node.children) != 3 or node.children[1].type not in ("testlist_comp", "dictorsetmaker"):
            return []
        opening, inner, closing = node.children
        elements = inner.children[::2]
        if any(comma.type != "operator" or comma.value != "," for comma in inner.children[1::2]) or len(elements) < 2:
            return []
        found = []
        for left_out in range(len(elements)):
            kept = [bare(each) for n, each in enumerate(elements) if n != left_out]
            end = "," if opening.value == "(" and len(kept) == 1 else ""
            found.append(f"{opening.value}{', '.join(kept)}{end}{closing.value}")
        return found

    @classmethod
    def examples(cls) -> Sequence[Example]:
        return (Example("x = (1, 2)", "x = (2,)"), Example("x = [1, 2]", "x = [1]", occurrence=1))


class DropOperand(_Choices):
    """Drops one condition of several: `a and b` becomes `a`. For types in `isinstance`, `A | B` becomes `A`."""

    def choices(self, node: Any) -> list[str]:
        operands = node.children[::2] if node.type in ("and_test", "or_test") or self._types(node) else []
        joints = [bare(each) for each in node.children[1::2]] if operands else []
        found = []
        for left_out in range(len(operands)):
            kept = [bare(each) for n, each in enumerate(operands) if n != left_out]
            found.append(f" {joints[0]} ".join(kept))
        return found

    @staticmethod
    def _types(node: Any) -> bool:
        """Returns whether a node is the second argument of `isinstance`, as `A | B`."""
        if node.type not in ("expr", "arith_expr") or node.parent is None or node.parent.type != "arglist":
            return False
        call = node.parent.parent.parent
        return call is not None and bare(call).startswith("isinstance(") and node.children[1].value == "|"

    @classmethod
    def examples(cls) -> Sequence[Example]:
        return (Example("x = a and b", "x = b"), Example("x = a or b or c", "x = a or b", occurrence=2))


class DropKeyword(_Choices):
    """Drops a named argument, so that its default is used: `f(a, b=1)` becomes `f(a)`."""

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        for argument in filter(self._named, self._arguments(node)):  # the argument alone, so that arguments can be left alone
            yield argument.start_pos, argument.end_pos

    def choices(self, node: Any) -> list[str]:
        arguments = self._arguments(node)
        found = []
        for left_out, argument in enumerate(arguments):
            if self._named(argument):
                kept = [bare(each) for n, each in enumerate(arguments) if n != left_out]
                found.append(f"({', '.join(kept)})")
        return found

    @staticmethod
    def _arguments(node: Any) -> list[Any]:
        if node.type != "trailer" or node.children[0].value != "(" or len(node.children) != 3:
            return []
        inner = node.children[1]
        return list(inner.children[::2]) if inner.type == "arglist" else [inner]

    @staticmethod
    def _named(argument: Any) -> bool:
        return argument.type == "argument" and len(argument.children) == 3 and bare(argument.children[1]) == "="

    @classmethod
    def examples(cls) -> Sequence[Example]:
        return (Example("f(a, b=1)", "f(a)"),)


class DropStatement(_Choices):
    """Drops a statement with an effect: a call, a change of an attribute, a `raise`, `+=`."""

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        for _ in self.choices(node):  # the statement without the end of its line, so that log lines are recognised
            yield node.children[0].start_pos, node.children[0].end_pos

    def choices(self, node: Any) -> list[str]:
        if node.type == "simple_stmt":
            inner = node.children[0]
            if inner.type in ("raise_stmt", "continue_stmt", "break_stmt", "yield_expr"):
                return [f"pass{node.children[-1].get_code()}"]
            if self._call(inner) or self._change(inner):
                return [f"pass{node.children[-1].get_code()}"]
        return []

    @staticmethod
    def _call(node: Any) -> bool:
        return node.type in ("atom_expr", "power") and bare(node).endswith(")")

    @staticmethod
    def _change(node: Any) -> bool:
        if node.type != "expr_stmt" or len(node.children) < 3:
            return False
        target, how = node.children[:2]
        return how.type == "operator" and (how.value != "=" or "." in bare(target) or bare(target).endswith("]"))

    @classmethod
    def examples(cls) -> Sequence[Example]:
        return (Example("f()\n", "pass\n"), Example("self.x = 1\n", "pass\n"))


class OtherWord(_Choices):
    """Misspells a word of the domain: `"warm"` becomes `"warm-"`. Sentences are left alone, because they are for people."""

    WORD = re.compile(r"""^(["'])[A-Za-z_][-\w.:/]*\1$""")

    def choices(self, node: Any) -> list[str]:
        if node.type != "string" or not self.WORD.match(node.value):
            return []
        if node.parent is not None and node.parent.type == "strings":
            return []
        return [f"{node.value[:-1]}-{node.value[-1]}"]

    @classmethod
    def examples(cls) -> Sequence[Example]:
        return (Example('x = "warm"', 'x = "warm-"'),)


class NothingCaught(_Choices):
    """Makes an `except` clause catch nothing, so that the error is raised."""

    def choices(self, node: Any) -> list[str]:
        if node.type != "except_clause":
            return []
        name = f" as {bare(node.children[3])}" if len(node.children) == 4 else ""
        return [f"except (){name}"]

    @classmethod
    def examples(cls) -> Sequence[Example]:
        return (Example("try: pass\nexcept OSError: pass", "try: pass\nexcept (): pass"),)


class Negate(_Choices):
    """Negates a condition. Comparisons and joined conditions are left to other operators, which change their parts."""

    def choices(self, node: Any) -> list[str]:
        if node.parent is None or node.type in ("comparison", "and_test", "or_test", "not_test", "operator", "keyword"):
            return []
        around = node.parent.children
        before = next((bare(one) for one, after in pairwise(around) if after is node), "")
        conditions = ("if", "elif", "while", "assert") if node.parent.type.endswith("_stmt") else ("if",)
        return [f"not {bare(node)}"] if before in conditions else []

    def mutate(self, node: Any, index: int) -> Any:
        return text(node, f"not {bare(node)}")

    @classmethod
    def examples(cls) -> Sequence[Example]:
        return (Example("if a: pass", "if not a: pass"), Example("x = a if b else c", "x = a if not b else c"))


class OtherMembership(_Choices):
    """Turns `in` into `not in`, and `not in` into `in`."""

    def choices(self, node: Any) -> list[str]:
        if node.type != "comparison" or len(node.children) != 3:
            return []
        left, how, right = (bare(each) for each in node.children)
        turned = {"in": "not in", "not in": "in"}.get(" ".join(how.split()))
        return [f"{left} {turned} {right}"] if turned else []

    @classmethod
    def examples(cls) -> Sequence[Example]:
        return (Example("x = a in b", "x = a not in b"),)


OURS = (DropElement, DropOperand, DropKeyword, DropStatement, OtherWord, NothingCaught, Negate, OtherMembership)
