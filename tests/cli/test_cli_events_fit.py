"""A person who lists events in a terminal of 80 columns sees what happened; who caused it is left out first."""

from holdfast.cli.fitting import fit

TITLES = ["AT", "KIND", "ABOUT", "TENANT", "BY", "REASON"]
ROWS = [
    ["07:51:11", "claim.created", "linux c-2x62y8bfynnnb56a", "default", "operator of this machine", ""],
    ["07:51:12", "claim.ended", "linux w-linux-xdq286gz c-2x62y8bfynnnb56a", "default", "", "its command exited with 0"],
]


def test_the_kind_of_an_event_is_shown_before_who_caused_it() -> None:
    found = fit("events", TITLES, ROWS, 80)
    assert "KIND" in [TITLES[place] for place in found.shown]
    assert "BY" in found.left_out
