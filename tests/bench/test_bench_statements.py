"""The benchmark distinguishes statements in the log of Postgres: those of a claim, of later polls by its agent, and of duties."""

from bench.statements import parse

LOG = """2026-01-01 00:00:00 UTC [1] LOG:  before the prefix was set
@@bench 11 LOG:  execute __asyncpg_stmt_1__: SELECT * FROM fn.match($1,
    $2::jsonb)
@@bench 12 LOG:  execute __asyncpg_stmt_9__: SELECT * FROM fn.report($1)
@@bench 11 DETAIL:  Parameters: $1 = 'p-1', $2 = '[{"id": "c-1", "tenant": "t"}]'
@@bench 12 DETAIL:  Parameters: $1 = 'w-pool-1'
@@bench 12 LOG:  execute __asyncpg_stmt_9__: SELECT * FROM fn.report($1, $2)
@@bench 12 DETAIL:  Parameters: $1 = 'w-pool-1', $2 = 'c-1'
@@bench 13 LOG:  execute __asyncpg_stmt_3__: SELECT * FROM worker WHERE id = ANY ($1)
@@bench 13 DETAIL:  Parameters: $1 = '{w-pool-2,w-pool-1}'
@@bench 13 LOG:  checkpoint starting: time
@@bench 14 LOG:  execute __asyncpg_stmt_4__: SELECT 1
"""


def test_each_statement_has_its_own_parameters() -> None:
    found = [entry.text for entry in parse(LOG)]

    assert len(found) == 5
    assert "c-1" in found[0]
    assert "w-pool-1" in found[1]


def test_a_claim_has_its_own_statements_and_the_poll_that_fetched_it() -> None:
    mine = [entry.text for entry in parse(LOG) if entry.belongs_to("c-1", "w-pool-1")]

    assert ["match" in mine[0], "report($1)" in mine[1], len(mine)] == [True, True, 2]


def test_a_renewal_has_only_what_names_its_claim() -> None:
    assert [entry.text for entry in parse(LOG) if entry.belongs_to("c-1")] == [parse(LOG)[0].text]


def test_an_empty_log_has_no_statements() -> None:
    assert parse("") == []
