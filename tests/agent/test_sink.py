"""An output that is longer than its limit keeps its beginning and its end, and each byte keeps its stream."""

import os
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agent.sink import MARK_BYTES, Sink
from holdfast.local.outputs import Outputs
from holdfast.ports.cluster import Output

Printed = list[tuple[str, bytes]]
STREAM = st.sampled_from(["stdout", "stderr"])
PRINTED = st.lists(st.tuples(STREAM, st.binary(min_size=1, max_size=120)), max_size=60)


def store(sink: Sink, stream: str, data: bytes) -> None:
    (sink.write if stream == "stdout" else sink.write_error)(data)


def read_all(outputs: Outputs, limit: int = 7, offset: int = 0) -> tuple[list[tuple[int, str]], list[tuple[int, int]]]:
    """Returns each byte with its stream, and the gaps as (position, length), as a reader of small pieces sees them."""
    found: list[tuple[int, str]] = []
    gaps: list[tuple[int, int]] = []
    while True:
        part = outputs.read("c-1", offset, limit)
        if not part.data:
            return found, gaps
        if part.offset > offset:
            gaps.append((offset, part.offset - offset))
        found += [(byte, stream) for _, stream, data in part.pieces() for byte in data]
        offset = part.offset + len(part.data)


def stored_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@settings(deadline=None)  # it writes many files
@given(PRINTED, st.integers(40, 2000), st.integers(1, 500), st.booleans())
def test_a_reader_gets_the_beginning_and_the_end_and_knows_what_is_missing(
    printed: Printed, limit: int, piece: int, served_again: bool
) -> None:
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        sink = Sink(folder / "c-1", limit)
        for number, (stream, data) in enumerate(printed):
            if served_again and number == len(printed) // 2:
                sink.close()
                sink = Sink(folder / "c-1", limit)
            store(sink, stream, data)
        sink.close()
        whole = [(byte, stream) for stream, data in printed for byte in data]
        found, gaps = read_all(Outputs(folder), piece)
        part = Outputs(folder).read("c-1", 0, 1)
        assert (part.size, part.truncated) == (len(whole), False)
        assert part.missing == len(whole) - len(found) == sum(length for _, length in gaps)
        if gaps:
            [(at, length)] = gaps
            assert found == whole[:at] + whole[at + length :]
        else:
            assert found == whole
        # Each of the files may hold one mark and one byte more than its share.
        assert stored_bytes(folder) <= limit + 10 * (MARK_BYTES + 1)
        assert len(found) == len(whole) or stored_bytes(folder) >= limit * 5 // 8 - 200


@settings(deadline=None)  # it writes many files
@given(PRINTED, st.integers(2000, 4000))
def test_a_reader_that_follows_sees_every_byte_of_an_output_that_is_not_kept_whole(printed: Printed, limit: int) -> None:
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        sink, outputs = Sink(folder / "c-1", limit), Outputs(folder)
        found: list[tuple[int, str]] = []
        for stream, data in printed * 10:
            store(sink, stream, data)
            fresh, gaps = read_all(outputs, 1000, len(found))
            assert gaps == []
            found += fresh
        assert found == [(byte, stream) for stream, data in printed * 10 for byte in data]


def test_the_limit_is_shared_by_beginning_and_end(tmp_path: Path) -> None:
    sink = Sink(tmp_path / "c-1", 160)
    for number in range(100):
        sink.write(f"line {number:04d}\n".encode())
    sink.close()
    first = Outputs(tmp_path).read("c-1", 0, 1000)
    assert first == Output(b"line 0000\n" * 1 + b"".join(f"line {n:04d}\n".encode() for n in range(1, 8)), 0, 1000, False, 840)
    after = Outputs(tmp_path).read("c-1", len(first.data), 1000)
    assert after.offset == 920
    assert read_all(Outputs(tmp_path), 1000)[1] == [(80, 840)]
    assert os.stat(tmp_path / "c-1.tail").st_mode & 0o777 == 0o700


def test_a_replica_of_the_release_before_reads_the_beginning_and_sees_that_it_is_truncated(tmp_path: Path) -> None:
    sink = Sink(tmp_path / "c-1", 20)
    sink.write(b"0123456789")
    assert not (tmp_path / "c-1.truncated").exists()
    sink.write(b"abc")
    assert (tmp_path / "c-1").read_bytes() == b"0123456789"
    assert (tmp_path / "c-1.truncated").exists()
    assert not Outputs(tmp_path).read("c-1", 0, 99).truncated, "nothing is missing yet"


def test_an_output_of_an_agent_of_the_release_before_is_read_as_stdout(tmp_path: Path) -> None:
    (tmp_path / "c-1").write_bytes(b"out and err")
    (tmp_path / "c-1.truncated").touch()
    part = Outputs(tmp_path).read("c-1", 4, 99)
    assert (part, list(part.pieces())) == (Output(b"and err", 4, 11, True), [(4, "stdout", b"and err")])


def test_a_full_disk_after_the_beginning_is_reported_as_a_lost_end(tmp_path: Path) -> None:
    sink = Sink(tmp_path / "c-1", 320)
    sink.write(bytes(160) + b"gh")
    assert sink._file is not None
    sink._file.close()
    sink._file = os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb", buffering=0)
    sink.write(b"i")
    assert sink._file is None, "nothing more is tried"
    part = Outputs(tmp_path).read("c-1", 160, 99)
    assert (part.data, part.size, part.truncated) == (b"gh", 162, True)


def test_an_old_output_is_deleted_with_all_its_files(tmp_path: Path) -> None:
    for claim in ("c-1", "c-2"):
        sink = Sink(tmp_path / claim, 100)
        for _ in range(20):
            sink.write(b"out out out")
            sink.write_error(b"err err err")
        sink.close()
        for path in tmp_path.iterdir():
            os.utime(path, (0, 0))
    assert Outputs(tmp_path).prune({"c-2"}) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c-2", "c-2.marks", "c-2.tail", "c-2.truncated"]
