"""Traces: what is read, what is refused with line, field and reason, and how they are cut."""

import io

import pytest
from plan_runs import trace as made

from holdfast.plan.trace import Arrival, Trace, WrongTrace, read, write

HEADER = "at,tenant,seconds,pool,priority\n"

REFUSED = [
    ("", "t.csv: holds no arrivals"),
    (HEADER, "t.csv: holds no arrivals"),
    ("at,tenant\n1,a\n", "t.csv:1: header: column 'seconds' is missing; a trace begins with: at,tenant,seconds,pool,priority"),
    ("1,a,2\n", "t.csv:1: header: unknown column '1'; known: at, tenant, seconds, pool, priority"),
    ("at,seconds,at\n", "t.csv:1: header: column 'at' appears twice"),
    (HEADER + "1,a,2,p\n", "t.csv:2: row: has 4 fields, and the header has 5"),
    (HEADER + "1,a,2,p,0\n\nx,a,2,p,0\n", "t.csv:4: at: 'x' is neither seconds (12.5) nor a time (2026-03-02T09:00:00Z)"),
    (HEADER + ",a,2,p,0\n", "t.csv:2: at: empty neither"),
    (HEADER + "-1,a,2,p,0\n", "t.csv:2: at: '-1' is neither"),
    (HEADER + "nan,a,2,p,0\n", "t.csv:2: at: 'nan' is neither"),
    (HEADER + "1,a,,p,0\n", "t.csv:2: seconds: empty"),
    (HEADER + "1,a,-3,p,0\n", "t.csv:2: seconds: '-3' is not a number of seconds, 0 or more"),
    (HEADER + "1,a,inf,p,0\n", "t.csv:2: seconds: 'inf' is not a number"),
    (HEADER + "1,a,1e3,p,0\n", "t.csv:2: seconds: '1e3' is not a number"),
    (HEADER + "1,a,99999999,p,0\n", "t.csv:2: seconds: 99999999 s is longer than a year"),
    (HEADER + "1,a b,2,p,0\n", "t.csv:2: tenant: 'a b' is not a tenant's name"),
    (HEADER + "1,a,2,P_1,0\n", "t.csv:2: pool: 'P_1' is not a pool's name"),
    (HEADER + "1,a,2,p,10\n", "t.csv:2: priority: '10' is not a whole number from 0 to 9"),
    (HEADER + "1,a,2,p,0\n2026-03-02T09:00:00Z,a,2,p,0\n", "t.csv:3: at: seconds and dates are mixed; line 2 has the other kind"),
    (HEADER + '1,"a\n', "t.csv: not CSV in UTF-8"),
]


@pytest.mark.parametrize(("text", "why"), REFUSED)
def test_a_bad_trace_is_refused_with_line_field_and_reason(text: str, why: str) -> None:
    with pytest.raises(WrongTrace) as refused:
        read(io.StringIO(text, newline=""), "t.csv")
    assert str(refused.value).startswith(why)


def test_seconds_count_from_the_first_whatever_the_order_of_rows() -> None:
    found = read(io.StringIO("\ufeffat,seconds\n# a remark\n17.5,2\n12, 3.5\n"), "t.csv")
    assert found == Trace((Arrival(0.0, 3.5), Arrival(5.5, 2.0)))


def test_dates_with_and_without_a_zone_are_understood() -> None:
    rows = "at,seconds,tenant\n2026-03-02T10:00:00+01:00,1,a\n2026-03-02T09:00:10,1,b\n2026-03-02T09:00:20.5Z,1,\n"
    found = read(io.StringIO(rows), "t.csv")
    assert [(each.at, each.tenant) for each in found.arrivals] == [(0.0, "a"), (10.0, "b"), (20.5, "default")]
    assert found.began == 1772442000.0


@pytest.mark.parametrize("began", [None, 1772442000.0])
def test_what_is_written_is_read_back(began: float | None) -> None:
    whole = Trace((Arrival(0.0, 3.25, "a", "linux", 2), Arrival(5.5, 0.0, "b")), began)
    file = io.StringIO()
    write(whole, file)
    file.seek(0)
    assert read(file, "t.csv") == whole


def test_a_trace_knows_its_pools_its_tenants_and_its_peak() -> None:
    whole = Trace((Arrival(0.0, 10.0, "a", "x", 3), Arrival(5.0, 10.0, "a", "y"), Arrival(15.0, 1.0, "b")))
    assert (whole.pools, whole.tenants, whole.peak, whole.horizon, whole.held) == (["x", "y"], {"a": 3, "b": 0}, 2, 16.0, 21.0)
    assert whole.of_pool("y") == Trace((Arrival(0.0, 10.0, "a", "y"), Arrival(10.0, 1.0, "b")))


def test_the_busiest_stretch_is_where_most_work_was_asked_for() -> None:
    whole = made((0, 10), (50, 10), (1000, 10), (1010, 10), (1090, 10), (1101, 1), (2000, 15))
    assert whole.busiest(100) == made((0, 10), (10, 10), (90, 10))
    assert whole.busiest(5000) == whole


def test_no_claim_is_held_for_longer_than_the_pool_allows() -> None:
    assert made((0, 10), (1, 100)).cut(50) == (made((0, 10), (1, 50)), 1)
