"""The list of kinds by which events are filtered is complete, and the index leaves out the frequent ones."""

import re
from pathlib import Path

from holdfast.model.event import FREQUENT, KINDS, kinds_named

SOURCE = Path(__file__).parents[2] / "src" / "holdfast"
NOUNS = {kind.split(".")[0] for kind in KINDS}
KIND = re.compile(rf"""['"]((?:{"|".join(sorted(NOUNS))})\.[a-z_]+)['"]""")


def written() -> set[str]:
    """Returns the kinds that statements and duties write into the history."""
    files = [
        *(SOURCE / "postgres").glob("*.py"),
        *(SOURCE / "postgres" / "functions").glob("*.sql"),
        SOURCE / "running" / "apply.py",
    ]
    files.remove(SOURCE / "postgres" / "rendering.py")  # its names of sets, such as `worker.free`, look like kinds
    return {kind for file in files for kind in KIND.findall(file.read_text(encoding="utf-8"))}


def test_a_reader_can_filter_by_every_kind_that_is_written() -> None:
    found = written()
    assert len(found) > 20
    assert found - set(KINDS) == set()


def test_a_noun_stands_for_all_of_its_kinds() -> None:
    assert kinds_named("brake") == ("brake.released", "brake.set", "brake.tripped")
    assert kinds_named("brake.tripped") == ("brake.tripped",)
    assert kinds_named("brak") == kinds_named("") == kinds_named("brake.") == ()


def test_the_index_and_the_code_agree_on_which_kinds_are_frequent() -> None:
    migration = (SOURCE / "postgres" / "migrations" / "0010_lists.sql").read_text(encoding="utf-8")
    listed = migration.split("CREATE INDEX event_kind", 1)[1].split(";", 1)[0]
    assert tuple(KIND.findall(listed)) == FREQUENT
