"""State machines as tables. SQL guards, event names, the diagrams in the docs and the property tests are made from them."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Transition:
    """One named change of state. `event` is its name in the history."""

    name: str
    sources: tuple[str, ...]  # empty when this transition creates the row
    target: str
    event: str
    why: str


@dataclass(frozen=True)
class Machine:
    """A closed set of states and all transitions between them."""

    noun: str
    states: tuple[str, ...]
    initial: tuple[str, ...]
    final: str
    transitions: tuple[Transition, ...]

    def __getitem__(self, name: str) -> Transition:
        for transition in self.transitions:
            if transition.name == name:
                return transition
        raise KeyError(f"{self.noun} has no transition {name!r}")

    def sources(self, name: str) -> tuple[str, ...]:
        """Returns the states from which `name` may start. A guard names exactly these."""
        return self[name].sources

    def allows(self, source: str, target: str) -> bool:
        return any(source in t.sources and t.target == target for t in self.transitions)

    def guard(self, name: str) -> str:
        """Returns the guard of a transition as an SQL list: `('warm','parked')`."""
        return sql_list(self.sources(name))

    def diagram(self) -> str:
        """Returns the machine as a Mermaid state diagram, for the docs."""
        lines = ["stateDiagram-v2"]
        for t in self.transitions:
            for source in t.sources or ("[*]",):
                lines.append(f"    {source} --> {t.target}: {t.name}")
        lines.append(f"    {self.final} --> [*]")
        return "\n".join(lines)


def sql_list(values: Iterable[str]) -> str:
    """Returns the values as an SQL list. Only for constants of the code, never for input."""
    names = tuple(values)
    assert names
    assert all(name.isidentifier() for name in names), names
    return "(" + ",".join(f"'{name}'" for name in names) + ")"
