"""The end of what a worker wrote: whole lines, printable, and without secrets, wherever the text was cut."""

import pytest

from holdfast.agent.tail import MARGIN, Tail


def tail(limit: int, *pieces: bytes) -> Tail:
    made = Tail(limit)
    for piece in pieces:
        made.write(piece)
    return made


def test_short_output_is_kept_as_it_is() -> None:
    assert tail(100, b"one\n", b"two").text([]) == "one\ntwo"
    assert tail(7, b"one\ntwo").text([]) == "one\ntwo"


def test_long_output_begins_with_a_whole_line() -> None:
    assert tail(6, b"one\ntwo\nsix").text([]) == "six"
    assert tail(4, b"a line without an end").text([]) == " end"


def test_output_that_never_stops_is_bounded() -> None:
    made = tail(100)
    for n in range(50_000):
        made.write(b"line %d\n" % n)
    assert made.text([]).endswith("line 49999\n")
    assert len(made.text([])) <= 100
    assert len(made._data) <= 2 * (100 + MARGIN)


@pytest.mark.parametrize("written", [b"x" * n for n in (0, 1, 90, 95, 100, 2 * MARGIN, 2 * (100 + MARGIN) - 3)])
def test_a_secret_is_removed_wherever_the_end_begins(written: bytes) -> None:
    made = tail(100, b"before " + written, b"top-sec", b"ret" + b"y" * 95)
    shown = made.text(["top-secret"])
    assert all(part not in shown for part in ("top", "sec", "ret"))


def test_each_line_of_a_secret_of_several_lines_is_removed() -> None:
    key = "-----BEGIN-----\nabcdef\n-----END-----"
    assert tail(100, b"abcdef\r\nand " + key.encode()).text([key]) == "***\nand ***"


def test_a_line_with_a_very_short_secret_is_left_out() -> None:
    assert tail(100, b"pin 12\nport 8123\nready\n").text(["12", ""]) == "ready\n"


def test_control_characters_and_colours_are_removed() -> None:
    assert tail(100, b"\x1b[1;31mred\x1b[0m\x00\xff\tok\r\n").text([]) == "red\\x00�\tok\n"


def test_a_secret_with_colours_inside_is_removed() -> None:
    assert tail(100, b"key sk-\x1b[31mlive\x1b[0m-\r123").text(["sk-live-123"]) == "key ***"
