"""Contract, section 13: every statement names its schema and casts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "akadze" / "_sql").glob("*.sql"))
BLOCK = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
TOKEN = re.compile(r"""'(?:[^']|'')*'|(?:"[^"]+"|[a-z_]\w*)(?:\.(?:"[^"]+"|[a-z_]\w*))*|::|\S""")
PARAMETER = re.compile(r"(?<![:\w]):[a-z_]\w*")
CAST = re.compile(r"\bcast\((:[a-z_]\w*) as [a-z]")
CTE = re.compile(r"(?:\bwith|\brecursive|,)\s+(\w+)\s*(?:\([\w\s,]+\)\s*)?as (?:(?:not )?materialized )?\(")
#: What a relation follows, and what these words follow where they are no beginning of a relation.
BEFORE = {"from", "join", "into", "update", "using", "table", "truncate", "copy"}
OTHERWISE = {("distinct", "from"), ("for", "update"), ("key", "update"), ("do", "update")}
ALIAS = re.compile(
    r"(?!(?:where|on|using|set|order|group|having|limit|offset|for|union|returning|select|values|left|cross|join)\b)[a-z]\w*"
)
QUALIFIED = re.compile(r"(?:akadze|pg_catalog|information_schema)\.|pg_\w+$")
TABLES = {
    f"akadze.{name}"
    for name in ("jobs", "workers", "periodic_runs", "queue_pauses", "limits", "limit_starts", "schema_migrations")
}
#: `akadze bench` compares with a bare table, in a database of its own.
ALSO = {"public.bare_jobs"}


def blocks() -> Iterator[tuple[str, str]]:
    """Yield each statement with its name, without the comments."""
    for path in FILES:
        parts = BLOCK.split(path.read_text("utf-8"))
        for name, sql in zip(parts[1::2], parts[2::2], strict=True):
            yield f"{path.stem}.{name}", without_comments(sql)


def without_comments(sql: str) -> str:
    return re.sub(r"--.*", "", sql).strip()


def closed(tokens: list[str], at: int) -> int:
    """Return the place behind the bracket that opens at this one."""
    depth = 0
    for place in range(at, len(tokens)):
        depth += {"(": 1, ")": -1}.get(tokens[place], 0)
        if depth == 0:
            return place + 1
    return len(tokens)


def relations(sql: str) -> Iterator[str]:
    """Yield what a statement reads and writes by its name: no subqueries, no functions."""
    tokens = TOKEN.findall(sql)
    for place, token in enumerate(tokens):
        of_index = token == "on" and "index" in tokens[max(0, place - 6) : place]
        if not (token in BEFORE or of_index) or (tokens[place - 1] if place else "", token) in OTHERWISE:
            continue
        if token == "from" and tokens[place - 2 : place - 1] == ["("] and tokens[place - 3] == "extract":
            continue
        yield from listed(tokens, place + 1)


def listed(tokens: list[str], at: int) -> Iterator[str]:
    """Yield the relations of a list with commas that begins here, each with an alias or without."""
    while at < len(tokens):
        while tokens[at] in {"if", "not", "exists", "lateral", "only", "table"}:
            at += 1
        if tokens[at] == "(":
            at = closed(tokens, at)
        elif tokens[at + 1 : at + 2] == ["("] and tokens[at - 1] not in {
            "into",
            "copy",
            "table",
            "exists",
            "on",
            "only",
        }:
            at = closed(tokens, at + 1)
        elif tokens[at] == "stdin":
            return
        else:
            yield tokens[at]
            at += 1
        at += 2 * (tokens[at : at + 2] == ["with", "ordinality"])
        at += tokens[at : at + 1] == ["as"]
        at += tokens[at : at + 1] != [] and ALIAS.fullmatch(tokens[at]) is not None
        if tokens[at : at + 1] == ["("]:
            at = closed(tokens, at)
        if tokens[at : at + 1] != [","]:
            return
        at += 1


def unqualified(sql: str) -> list[str]:
    """Return the relations that the search path would have to find, without the CTEs of the statement itself."""
    own = {*CTE.findall(sql), *ALSO}
    return [name for name in relations(sql) if name not in own and not QUALIFIED.match(name)]


def without_cast(sql: str) -> list[str]:
    """Return the parameters that do not stand in a cast of their own, as often as they do not."""
    return PARAMETER.findall(CAST.sub("", sql))


def test_each_parameter_stands_in_a_cast_of_its_own() -> None:
    assert sum(len(PARAMETER.findall(sql)) for _, sql in blocks()) > 100
    assert {name: found for name, sql in blocks() if (found := without_cast(sql))} == {}


def test_each_table_is_named_with_its_schema() -> None:
    assert {name for _, sql in blocks() for name in relations(sql)} >= TABLES
    assert {name: found for name, sql in blocks() if (found := unqualified(sql))} == {}


def test_the_tables_of_a_migration_are_named_with_their_schema() -> None:
    steps = {path.name: path.read_text("utf-8") for path in (ROOT / "akadze" / "_migrations").glob("*.sql")}
    assert steps
    assert {name: found for name, sql in steps.items() if (found := unqualified(without_comments(sql)))} == {}


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("select cast(:id as bigint), cast(cast(:args as text) as jsonb)", []),
        ("select 1 where id = :id", [":id"]),
        ("select cast(:id as bigint), :id", [":id"]),
        ("select cast(coalesce(:id, 1) as bigint)", [":id"]),
        ("select cast((:args) as text), cast(:limit + 1 as integer)", [":args", ":limit"]),
        ("select :id::bigint", [":id"]),
        ("-- Up to :slots jobs.\nselect 1", []),
    ],
)
def test_a_parameter_without_a_cast_is_found(sql: str, found: list[str]) -> None:
    assert without_cast(without_comments(sql)) == found


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("select j.id from jobs j", ["jobs"]),
        ("select j.id from public.jobs j", ["public.jobs"]),
        ("select j.id from akadze.jobs j join workers w on w.id = j.worker_id", ["workers"]),
        ("select 1 from akadze.jobs as j, limits m where m.key = j.limit_key order by run_at, id", ["limits"]),
        ("select 1 from unnest(cast(:ids as bigint[])) with ordinality as i(id, place), jobs", ["jobs"]),
        ("select 1 from (select j.id from jobs j) x, limits", ["limits", "jobs"]),
        ("select exists (select from queue_pauses)", ["queue_pauses"]),
        ("update jobs j set state = 'x', attempt = 1 from akadze.workers w", ["jobs"]),
        (
            "insert into limits as m (key, max_running) values (1, 2) on conflict (key) do update set key = 1",
            ["limits"],
        ),
        ("delete from jobs j using workers w where w.id = j.worker_id", ["jobs", "workers"]),
        ("with a as (select 1 from b) select 1 from a", ["b"]),
        ("with recursive a as materialized (select 1), b (x) as (select 1 from a) select x from b, a, c", ["c"]),
        ("truncate akadze.jobs, workers restart identity", ["workers"]),
        ("copy jobs (task, args) from stdin", ["jobs"]),
        ("create table if not exists jobs (id int)", ["jobs"]),
        ("create unique index concurrently if not exists a on jobs (id)", ["jobs"]),
        ("select c.oid from pg_class c join pg_catalog.pg_namespace n on true, information_schema.columns", []),
        ("select extract(epoch from now()) from unnest(cast(:ids as int[])) i(id) where id is distinct from 1", []),
        ("select j.id from akadze.jobs j where state = 'from jobs' for update of j skip locked -- from jobs", []),
        ("select j.id from akadze.jobs j cross join lateral (select 1 offset 0) x for no key update", []),
    ],
)
def test_a_table_without_its_schema_is_found(sql: str, found: list[str]) -> None:
    assert unqualified(without_comments(sql)) == found
