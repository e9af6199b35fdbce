"""The app that ``module:attribute`` names."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING

import typer

from akadze.cli.output import fail

if TYPE_CHECKING:
    from akadze.app import Akadze
    from akadze.errors import AkadzeError

_AKADZE = f"{Path(__file__).parent.parent}{os.sep}"
_FORM = "write it as module:attribute, for example project.tasks:app"


def load_app(given: str) -> Akadze:
    """Import the module, with the current directory first in the path, and return the app.

    Exits with 2 if there is no such module or attribute, it is no app, or the module uses akadze wrongly, which is told
    in one line. Any other error inside the module is shown with its traceback, and exits with 1.
    """
    from akadze.app import Akadze

    name, attribute = _split(given)
    module = _imported(name)
    try:
        found = getattr(module, attribute)
    except AttributeError:
        fail(f"module {name!r} has no {attribute!r}: {_apps_of(module)}", 2)
    if not isinstance(found, Akadze):
        fail(f"{given} is of type {type(found).__name__}, not an Akadze app: {_apps_of(module)}", 2)
    return found


def check_database(app: Akadze) -> None:
    """Raise AkadzeError if the app's ``database_url`` is a function that finds no URL, or none that can be used.

    Another error of the function's own comes again when the worker starts, which tells it with its traceback.
    """
    from akadze.errors import AkadzeError

    try:
        _ = app.engine
    except KeyError as error:
        *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
        if innermost.f_globals.get("__name__") == "os":  # os.environ lacks it
            raise AkadzeError(f"the app's database_url reads the variable {error}, which is not set") from None
    except Exception as error:
        if isinstance(error, AkadzeError) and _is_of_akadze(error):
            raise


def _split(given: str) -> tuple[str, str]:
    name, colon, attribute = given.partition(":")
    if not colon or not name or not attribute:
        fail(f"APP is {given!r}: {_FORM}", 2)
    if re.search(r"[/\\]|\.py$", name):
        fail(f"APP is {given!r}: write dots instead of slashes, and no .py, for example project.tasks:app", 2)
    if not all(part.isidentifier() for part in name.split(".")):
        fail(f"APP is {given!r}, and {name!r} is no module's name: {_FORM}", 2)
    if not attribute.isidentifier():
        fail(f"APP is {given!r}, and {attribute!r} is no attribute's name: {_FORM}", 2)
    return name, attribute


def _imported(name: str) -> ModuleType:
    from akadze._sqlstates import first_line
    from akadze.errors import AkadzeError

    here = current_directory()
    if sys.path[:1] not in ([here], [""]):
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        inside = _inside(error.__traceback__)
        if inside is None and isinstance(error, ModuleNotFoundError) and error.name and _leads(error.name, name):
            missing = "" if error.name == name else f" (there is no {error.name!r})"
            fail(f"there is no module {name!r}{missing}: it is looked for in {here} and in the installed packages", 2)
        if isinstance(error, AkadzeError) and _is_of_akadze(error):
            fail(f"{_place(inside)}{first_line(error)}", 2)
        _print_traceback(error, inside)
        raise typer.Exit(1) from None


def current_directory() -> str:
    """Return where the app's modules are looked for first; the end, in one line, if somebody has removed it."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        fail("the current directory has been removed: start the worker in one that is there", 1)


def _leads(part: str, name: str) -> bool:
    return name == part or name.startswith(f"{part}.")


def _inside(position: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that begins in the user's code; None if it ends in the machinery of imports."""
    machinery = (__file__, importlib.__file__)
    while position is not None:
        file = position.tb_frame.f_code.co_filename
        if file not in machinery and not file.startswith("<frozen importlib"):
            break
        position = position.tb_next
    return position


def _is_of_akadze(error: AkadzeError) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(_AKADZE)


def _place(inside: TracebackType | None) -> str:
    """Where the user's code called akadze."""
    theirs = [frame for frame in traceback.extract_tb(inside) if not frame.filename.startswith(_AKADZE)]
    return f"{theirs[-1].filename}, line {theirs[-1].lineno}: " if theirs else ""


def _print_traceback(error: BaseException, inside: TracebackType | None) -> None:
    from akadze._urls import without_password

    lines = traceback.format_exception(type(error), error, inside)
    sys.stderr.write(without_password("".join(lines)))


def _apps_of(module: ModuleType) -> str:
    from akadze.app import Akadze

    names = [name for name, value in sorted(vars(module).items()) if isinstance(value, Akadze)]
    if not names:
        return "the module has no Akadze app, make one there: app = Akadze(...)"
    return "its apps are " + ", ".join(f"{module.__name__}:{name}" for name in names)
