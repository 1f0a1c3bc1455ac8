"""The output of a claim over HTTP: as bytes, as marked pieces, and as clients of the release before read it."""

import json
from base64 import b64decode

import pytest

from fleet import Answer
from holdfast.agent.sink import Sink
from holdfast.model.output import missing_line
from served_api import Stage

BEGIN, END = b"begin\n".ljust(79, b".") + b"\n", b"last\n"


@pytest.fixture
def claim(stage: Stage) -> str:
    """Returns a claim whose output is longer than what is kept: 80 bytes at the beginning, and at least 70 at the end."""
    made = str(stage.claim()["id"])
    sink = Sink(stage.home / "output" / made, 160)
    for number in range(100):
        sink.write(BEGIN if number == 0 else f"{number:09d}\n".encode())
    sink.write_error(END)
    sink.close()
    return made


def read(stage: Stage, claim: str, accept: str, query: str = "") -> Answer:
    return stage.ask("GET", f"/v1/claims/{claim}/output{query}", headers={"Accept": accept})


def test_a_person_with_curl_sees_both_ends_and_a_line_between(stage: Stage, claim: str) -> None:
    answer = read(stage, claim, "*/*")
    missing = int(answer.headers["holdfast-missing"])
    beginning, _, end = answer.raw.partition(missing_line(missing, b"\n"))
    assert beginning == BEGIN
    assert end.endswith(b"000000099\nlast\n")
    assert len(BEGIN) + missing + len(end) == len(BEGIN) + 99 * 10 + len(END)
    assert answer.headers["holdfast-truncated"] == "true"
    assert int(answer.headers["holdfast-size"]) == len(beginning) + len(end)


def test_each_piece_names_its_stream_and_missing_bytes_are_counted(stage: Stage, claim: str) -> None:
    pieces = [json.loads(line) for line in read(stage, claim, "application/x-ndjson").raw.splitlines()]
    assert (pieces[0]["offset"], pieces[0]["stream"], b64decode(pieces[0]["data"])) == (0, "stdout", BEGIN)
    assert pieces[1].keys() == {"offset", "missing"}
    errors = [b64decode(piece["data"]) for piece in pieces if piece.get("stream") == "stderr"]
    assert b"".join(errors) == END
    position = 0
    for piece in pieces:
        assert piece["offset"] == position
        position += piece["missing"] if "missing" in piece else len(b64decode(piece["data"]))
    assert position == len(BEGIN) + 99 * 10 + len(END)


def test_a_client_of_the_release_before_reads_both_ends_once(stage: Stage, claim: str) -> None:
    """It counts the bytes that it receives, and continues there; if an answer begins later, it continues from there."""
    got, offset = b"", 0
    released = stage.ask("POST", f"/v1/claims/{claim}/cancel", {"reason": "done"})
    assert released.status == 200, released.raw
    for follow in ("true", "false"):
        answer = read(stage, claim, "application/json", f"?offset={offset}&follow={follow}")
        offset = max(offset, int(answer.headers["holdfast-offset"]))
        got, offset = got + answer.raw, offset + len(answer.raw)
    assert got == read(stage, claim, "*/*").raw
    assert offset == len(BEGIN) + 99 * 10 + len(END)
