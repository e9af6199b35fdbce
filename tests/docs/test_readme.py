"""Every block of the README and of the pages in docs is run, or is a part of a file that is run elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from akadze import Akadze
from tests.docs import framework_setups, operating_setups, pages_setups, readme_setups, security_setups  # noqa: F401 - they register set-ups
from tests.docs.bench import Bench
from tests.docs.markdown import ROOT, Block, blocks, parse
from tests.docs.setups import SET_UPS
from tests.families import few

PAGES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))]
#: Pages that explain the inside, with statements that are tested where they are used.
NOT_RUN = ["docs/how-a-claim-works.md"]
#: Scripts write their blocks of text, and tests compare them with what they are made of.
GENERATED = ["docs/api.md", "docs/cli.md"]

ALL = [block for page in PAGES if page not in NOT_RUN for block in blocks(page)]
MARKED = [block for block in ALL if block.mark is not None and block.mark[0] == "run"]


def walk_of(page: str) -> list[Block]:
    """The files of a page and the commands that use them, in the order of the page."""
    return [block for block in ALL if block.page == page and (block.mark is None or block.mark[0] == "file")]


def how_it_is_run(block: Block) -> str | None:
    """Say how a block is run, None if nobody has said so."""
    match block.mark:
        case ("run", name):
            return "set-up" if name in SET_UPS and block.language in ("python", "sh", "sql") else None
        case ("file", _):
            return "walk" if block.language == "python" else None
        case ("from", _):
            return "part"
        case _ if block.page in GENERATED and block.language == "text":
            return "generated"
        case _:
            return "walk" if block.language == "sh" else None


@pytest.fixture
def bench(app: Akadze, database_url: str, tmp_path: Path) -> Bench:
    return Bench(app, database_url, tmp_path)


@pytest.mark.parametrize("block", ALL, ids=lambda block: block.place)
def test_somebody_has_said_how_to_run_each_block(block: Block) -> None:
    assert how_it_is_run(block) is not None, f"{block.place}: mark the block as tests/docs/markdown.py says"


@pytest.mark.parametrize("block", MARKED, ids=lambda block: block.place)
async def test_a_block_does_what_its_page_says(block: Block, bench: Bench) -> None:
    assert block.mark is not None
    async with SET_UPS[block.mark[1]](bench):
        await bench.run(block)


@pytest.mark.parametrize("page", few([page for page in PAGES if walk_of(page)], kept=["README.md"]))
async def test_the_commands_of_a_page_work_in_order(page: str, bench: Bench) -> None:
    # The application of the README is what the commands of other pages speak of.
    files = [block for block in walk_of("README.md") if block.mark is not None]
    for block in [*files, *walk_of(page)]:
        if block.mark is not None:
            (bench.directory / block.mark[1]).write_text(block.text)
        else:
            await bench.run(block)


@pytest.mark.parametrize("block", [block for block in ALL if how_it_is_run(block) == "part"], ids=lambda b: b.place)
def test_a_part_of_a_file_is_there_word_for_word(block: Block) -> None:
    assert block.mark is not None
    assert block.text in (ROOT / block.mark[1]).read_text("utf-8")


def test_each_set_up_belongs_to_a_block() -> None:
    used = {block.mark[1] for block in MARKED if block.mark is not None}
    assert set(SET_UPS) == used


def test_the_readme_names_the_two_commands_to_begin_with() -> None:
    commands = [line for block in ALL if block.page == "README.md" for line in block.text.splitlines()]
    assert "pip install uv && uv run akadze demo" in commands
    assert "uv run pytest" in commands


def anchors(page: Path) -> set[str]:
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_within_the_project_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text("utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        found = (path.parent / name).resolve() if name else path
        assert found.exists(), f"{page} links to {target}"
        if anchor:
            assert anchor in anchors(found), f"{page} links to {target}"


def test_a_block_without_a_mark_is_found_and_refused() -> None:
    text = "<!-- run: order -->\n\nwords in between\n```python\nx\n```\n~~~ini\n[a]\n~~~\n"
    found = parse("page.md", f"{text}<!-- file: a.py -->\n```python\n```\n")
    assert [(block.language, block.line, how_it_is_run(block)) for block in found] == [
        ("python", 5, None),
        ("ini", 8, None),
        ("python", 12, "walk"),
    ]
