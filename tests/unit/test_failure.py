"""Contract, section 4: what a failed run leaves in its job's errors."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from akadze._failure import failure, name_of, place_of
from akadze.outcomes import Fail

NOW = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)


def message(error: BaseException) -> str:
    entry = failure(error, NOW)
    assert set(entry) == {"error", "message", "at"}
    assert all(type(value) is str for value in entry.values())
    assert len(json.dumps(entry, ensure_ascii=False).encode()) < 4096
    assert len(entry["message"].encode()) <= 2048
    assert "\0" not in "".join(entry.values())
    return entry["message"]


def raised(act: Any) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whatever it is
        act()
    return caught.value


def test_an_entry_holds_type_text_and_time() -> None:
    assert failure(ValueError("late"), NOW) == {
        "error": "ValueError",
        "message": "late",
        "at": "2026-01-02T03:04:05.000006+00:00",
    }


@pytest.mark.parametrize("text", ["", "žluťoučký 🐎", "two\nlines\ttab", "x" * 2000, "ž" * 1000, "\\u0000", '"quoted"'])
def test_a_text_of_moderate_length_is_kept_exactly(text: str) -> None:
    assert message(RuntimeError(text)) == text


class OwnConstructor(Exception):
    def __init__(self, code: int, detail: str) -> None:
        super().__init__(code)
        self.detail = detail


class NoText(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class NoRepr(Exception):
    def __str__(self) -> str:
        raise ValueError

    def __repr__(self) -> str:
        raise ValueError


class NumberText(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class Leaves(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


class Endless(Exception):
    def __str__(self) -> str:
        return str(self)


class OddText(Exception):
    def __str__(self) -> str:
        class Text(str):
            __slots__ = ()

            def __len__(self) -> int:
                raise RuntimeError("no length")

            def __getitem__(self, key: Any) -> str:
                raise RuntimeError("no item")

        return Text("odd text")


class OddMeta(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name")


class OddName(Exception, metaclass=OddMeta):
    pass


class OddCause(Exception):
    @property
    def __cause__(self) -> BaseException:  # type: ignore[override]
        raise RuntimeError("no cause")


class LeavingCause(Exception):
    @property
    def __cause__(self) -> BaseException:  # type: ignore[override]
        raise SystemExit(1)


@pytest.mark.parametrize(
    ("error", "name", "text"),
    [
        (OwnConstructor(7, "late"), "OwnConstructor", "7"),
        (NoText(), "NoText", "(its text cannot be shown: __str__ raised ValueError)"),
        (NoRepr(), "NoRepr", "(its text cannot be shown: __str__ raised ValueError)"),
        (NumberText(), "NumberText", "(its text cannot be shown: __str__ raised TypeError)"),
        (Leaves(), "Leaves", "(its text cannot be shown: __str__ raised SystemExit)"),
        (Endless(), "Endless", "(its text cannot be shown: __str__ raised RecursionError)"),
        (OddText(), "OddText", "odd text"),
        (OddName("x"), "OddName", "x"),
        (OddCause("x"), "OddCause", "x"),
        (LeavingCause("x"), "LeavingCause", "x"),
        (SystemExit(3), "SystemExit", "3"),
        (KeyboardInterrupt(), "KeyboardInterrupt", ""),
        (Fail("why"), "Fail", "why"),
        (ValueError("x").with_traceback(None), "ValueError", "x"),
    ],
)
def test_an_odd_exception_leaves_an_entry_all_the_same(error: BaseException, name: str, text: str) -> None:
    assert failure(error, NOW)["error"] == name
    assert message(error) == text


def test_a_recursion_error_leaves_an_entry() -> None:
    def forever() -> None:
        forever()

    error = raised(forever)
    assert failure(error, NOW)["error"] == "RecursionError"
    assert "recursion" in message(error)


def test_head_and_tail_of_a_huge_text_are_kept() -> None:
    text = message(RuntimeError("first " + "x" * 50_000_000 + " last"))
    assert text.startswith("first xxx")
    assert text.endswith("xxx last")
    assert " […] " in text
    assert 1900 < len(text.encode()) <= 2048


def test_nul_and_surrogates_are_shown_escaped() -> None:
    assert message(RuntimeError("a\0b\ud800c\udfff")) == "a\\u0000b\\ud800c\\udfff"


def test_passwords_are_cut_out_at_any_place_of_the_text() -> None:
    secret = "postgresql://u:sesame@h/db"
    for text in (secret, f"{'x' * 3000} {secret}", f"{secret} {'x' * 50_000}", f"{secret} " * 5000, "password=sesame"):
        assert "sesame" not in message(ConnectionError(text))

    outer = ValueError("outer")
    outer.__cause__ = ConnectionError(secret)
    assert message(outer) == "outer\ncaused by ConnectionError: postgresql://u:***@h/db"


@given(st.integers(0, 60), st.integers(5000, 60_000))
def test_a_password_at_the_edge_of_what_is_looked_at_is_not_left_by_halves(shift: int, length: int) -> None:
    url = "postgresql://user:sesame-open@h/db "
    text = "y" * shift + " " + url * (length // len(url))
    assert "same" not in message(ValueError(text))


def test_causes_are_named() -> None:
    def in_handler() -> None:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second")  # noqa: B904 - the implicit context is what is tested

    def from_cause() -> None:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error

    def hidden() -> None:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second") from None

    assert message(raised(in_handler)) == "second\nwhile handling KeyError: 'first'"
    assert message(raised(from_cause)) == "second\ncaused by KeyError: 'first'"
    assert message(raised(hidden)) == "second"


def test_members_of_a_group_and_their_causes_are_named() -> None:
    inner = ValueError("a")
    inner.__cause__ = KeyError("why")
    error = ExceptionGroup("many", [inner, ExceptionGroup("nested", [TypeError("b")])])
    assert message(error) == (
        "many (2 sub-exceptions)\nmember ValueError: a\nmember ExceptionGroup: nested (1 sub-exception)\n"
        "caused by KeyError: 'why'\nmember TypeError: b"
    )


def test_a_cycle_of_causes_does_not_hang() -> None:
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__context__ = second, first
    first.__suppress_context__ = second.__suppress_context__ = False
    assert message(first) == "first\ncaused by KeyError: 'second'"
    own = ValueError("own")
    own.__cause__ = own
    assert message(own) == "own"


def test_long_chains_and_big_groups_keep_the_ends() -> None:
    errors = [ValueError(f"number {n}") for n in range(5000)]
    for error, cause in itertools.pairwise(errors):
        error.__cause__ = cause
    text = message(errors[0])
    assert text.startswith("number 0\ncaused by ValueError: number 1\n")
    assert "more left out" in text
    group = message(ExceptionGroup("many", [ValueError(str(n)) for n in range(100_000)]))
    assert "member ValueError: 0\n" in group
    short = message(ExceptionGroup("some", [ValueError(str(n)) for n in range(20)]))
    assert "(12 more left out)" in short
    assert short.endswith("member ValueError: 19")


def test_a_long_text_does_not_push_its_causes_out() -> None:
    error = ValueError("x" * 100_000)
    error.__cause__ = KeyError("root " + "y" * 100_000)
    text = message(error)
    assert "\ncaused by KeyError: 'root yyy" in text
    assert text.startswith("xxx")
    assert len(text) > 1900
    error.__cause__ = KeyError("short")
    assert message(error).endswith("x\ncaused by KeyError: 'short'")


def test_every_one_of_many_long_causes_is_named() -> None:
    group = ExceptionGroup("g" * 5000, [ValueError(f"start{n} " + '\n"' * 5000) for n in range(8)])
    text = message(group)
    assert all(f"member ValueError: start{n}" in text for n in range(8))


def test_the_name_of_a_class_is_made_storable() -> None:
    long = type("X" * 10_000, (Exception,), {})
    assert len(failure(long("x"), NOW)["error"]) == 200
    assert message(long("x")) == "x"
    assert name_of(KeyError()) == "KeyError"


texts = st.text(st.characters(), max_size=3000) | st.text(st.sampled_from('\0\x01\n"\\ž🐎\ud800'), max_size=9000)


@given(st.lists(texts, min_size=1, max_size=12), st.booleans())
def test_an_entry_stays_small_whatever_the_texts_are(parts: list[str], as_group: bool) -> None:
    errors = [RuntimeError(part) for part in parts]
    for error, cause in itertools.pairwise(errors):
        error.__cause__ = cause
    text = message(ExceptionGroup(parts[0], errors) if as_group else errors[0])
    text.encode()
    assert json.loads(json.dumps(text)) == text


def deep(levels: int) -> None:
    if not levels:
        raise ValueError("s3cret")
    deeper(levels)


def deeper(levels: int) -> None:
    deep(levels - 1)


def test_the_place_of_an_error_is_told_from_both_ends_and_without_its_message() -> None:
    lines = place_of(raised(lambda: deep(50))).splitlines()
    assert any("in raised" in line for line in lines)
    assert any('raise ValueError("s3cret")' in line for line in lines[-2:])
    assert "ValueError: s3cret" not in "".join(lines)
    assert sum("test_failure.py" in line for line in lines) == 10
    assert "  […]" in lines


@pytest.mark.parametrize("problem", [RuntimeError(), SystemExit(1)], ids=repr)
def test_an_error_that_was_never_raised_or_hides_its_traceback_has_no_place(problem: BaseException) -> None:
    class Hidden(Exception):
        @property
        def __traceback__(self) -> Any:  # type: ignore[override]  # that is the point
            raise problem

    assert place_of(ValueError()) == ""
    assert place_of(Hidden()) == ""
