"""The mutants of Python code: each kind of bug is made, keys survive moves of lines, and texts for people are left alone."""

import pytest
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from mutation.python_copy import ROOT
from mutation.python_mutants import Mutant, mutants
from mutation.python_operators import OURS
from mutation.python_swap import swap
from mutation.python_targets import files

SOURCE = '''"""A module."""
import os
LIMIT = 5  # why
FREE = ("warm", "parked")


def free(state: str | None, age: int = 0) -> bool:
    log.info("asked", state="warm")
    assert age >= 0, "an age"
    return state in FREE and age < LIMIT
'''


def changes(source: str) -> dict[str, Mutant]:
    return {mutant.key: mutant for mutant in mutants("src/holdfast/x.py", source)}


@pytest.mark.parametrize("operator", OURS, ids=lambda operator: operator.__name__)
def test_an_operator_does_what_its_examples_show(operator: type[Operator]) -> None:
    examples = operator.examples()
    assert examples
    for example in examples:
        found = mutate_code(example.pre_mutation_code, operator(), example.occurrence)
        assert found == example.post_mutation_code


def test_twins_conditions_limits_and_words_are_changed() -> None:
    assert {
        'module: FREE = ("warm", "parked") => FREE = ("warm",)',
        'module: FREE = ("warm", "parked") => FREE = ("parked",)',
        'module: FREE = ("warm", "parked") => FREE = ("warm-", "parked")',
        "module: LIMIT = 5 => LIMIT = 6",
        "module: LIMIT = 5 => LIMIT = 4",
        "free: return state in FREE and age < LIMIT => return state in FREE",
        "free: return state in FREE and age < LIMIT => return age < LIMIT",
        "free: return state in FREE and age < LIMIT => return state in FREE and age <= LIMIT",
        "free: return state in FREE and age < LIMIT => return state not in FREE and age < LIMIT",
        "free: def free(state: str | None, age: int = 0) -> bool: => def free(state: str | None, age: int = 1) -> bool:",
    } <= set(changes(SOURCE))


def test_annotations_imports_log_lines_and_texts_are_left_alone() -> None:
    for key in changes(SOURCE):
        before, after = key.split(" => ")
        assert "log.info" not in before
        assert "import" not in before
        assert "str & None" not in after
        assert '"an age"' in after or "assert" not in before


@pytest.mark.parametrize(
    "line",
    [
        'Item = TypeVar("Item")',
        'crash_point("claim.stored")',
        'raise AssertionError("unreachable")',
        "data = reader.read(65_536)",
        "class Spec(Struct, kw_only=True): pass",
        'pool = option("--pool", help="the pool")',
    ],
)
def test_what_only_readers_and_tools_see_has_no_mutants(line: str) -> None:
    assert changes(line + "\n") == {}


def test_the_length_check_of_a_zip_is_left_alone_and_other_arguments_are_not() -> None:
    assert set(changes("pairs = list(zip(a, b, strict=True))\n")) == set()
    assert set(changes("pairs = sorted(a, key=len, reverse=True)\n")) == {
        "module: pairs = sorted(a, key=len, reverse=True) => pairs = sorted(a, key=len, reverse=False)",
        "module: pairs = sorted(a, key=len, reverse=True) => pairs = sorted(a, key=len)",
        "module: pairs = sorted(a, key=len, reverse=True) => pairs = sorted(a, reverse=True)",
    }


def test_several_words_select_the_files_of_each() -> None:
    assert files(ROOT, "recovery/actions,agent/hold") == ["src/holdfast/recovery/actions.py", "src/holdfast/agent/hold.py"]
    assert set(files(ROOT, None)) > set(files(ROOT, "duties/,model/")) > set(files(ROOT, "duties/"))


def test_a_key_survives_a_move_of_its_line_and_a_change_of_its_comment() -> None:
    moved = SOURCE.replace("LIMIT = 5  # why", "\n\nLIMIT = 5  # because").replace("import os", "import os\nimport sys")
    assert set(changes(moved)) == set(changes(SOURCE))


def test_every_mutant_differs_from_the_source_and_from_every_other() -> None:
    codes = [mutant.code for mutant in mutants("src/holdfast/x.py", SOURCE)]
    assert len(set(codes)) == len(codes)
    assert SOURCE not in codes


def test_only_a_change_of_a_functions_body_names_the_function() -> None:
    """A default is bound when its function is made, so such a mutant has to be loaded again."""
    for mutant in mutants("src/holdfast/x.py", SOURCE):
        inside = mutant.key.startswith("free: ") and "def free" not in mutant.key
        assert mutant.function == ("free" if inside else ""), mutant.key


def test_a_loaded_function_takes_a_mutants_code_wherever_it_was_imported() -> None:
    from holdfast.model import machine
    from holdfast.model.machine import Machine, sql_list

    source = (path := machine.__file__) and open(path).read()  # noqa: SIM115
    once = source.replace('"(" + ",".join', '"[" + ",".join')
    assert once != source
    relative = "src/holdfast/model/machine.py"
    try:
        assert swap(relative, once, "sql_list")
        assert sql_list(("a", "b")) == "['a','b')"
        assert swap(relative, source.replace("self[name].sources", "()"), "Machine.sources")
        assert Machine.sources.__code__.co_consts != ()
    finally:
        assert swap(relative, source, "sql_list")
        assert swap(relative, source, "Machine.sources")
    assert sql_list(("a", "b")) == "('a','b')"


def test_what_is_no_function_cannot_be_swapped() -> None:
    import holdfast.model.machine as machine

    source = open(machine.__file__).read()  # noqa: SIM115
    assert not swap("src/holdfast/model/machine.py", source, "Machine")
    assert not swap("src/holdfast/model/machine.py", source, "nothing")
