"""What a task function takes: its parameters by name, with their annotations resolved."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature
from typing import Any

from akadze.errors import AkadzeError

__all__ = ["is_async", "read_parameters"]

_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def is_async(fn: Any) -> bool:
    """Tell whether calling ``fn`` gives a coroutine: a function, partial, bound method or object with ``__call__``."""
    return any(inspect.iscoroutinefunction(layer) for layer in _layers(fn))


def read_parameters(task: str, fn: Any) -> dict[str, Parameter]:
    """Return the parameters that a job of ``task`` may give to ``fn``, by name, annotations resolved.

    A decorated function is read as what is really called: the wrapper's own parameters, and where it passes on
    ``**kwargs``, those of the function it wraps (``functools.wraps`` leads there).

    Raises AkadzeError for what cannot be called with arguments by name, and for annotations that cannot be resolved.
    """
    if inspect.isclass(fn) or not callable(fn):
        kind = "a class" if inspect.isclass(fn) else f"an object of type {type(fn).__name__}"
        raise AkadzeError(f"task {task!r} is {kind}; a task is a function or an object with __call__")
    for layer in _layers(fn):
        if inspect.isgeneratorfunction(layer) or inspect.isasyncgenfunction(layer):
            raise AkadzeError(f"task {task!r} is a generator function, which a job cannot run; return a value instead")
    signature = _signature(task, fn)
    for parameter in signature.parameters.values():
        if parameter.kind not in _NAMED:
            raise AkadzeError(
                f"task {task!r} takes {_spelled(parameter)}, but jobs give their arguments by name; "
                "name each parameter so that it can be given as name=value"
            )
        if type(parameter.default).__module__ == "pydantic.fields":
            raise AkadzeError(
                f"task {task!r}: the default of {parameter.name!r} is a pydantic Field; "
                "put the Field into Annotated[...] and write the default as a plain value"
            )
    return dict(signature.parameters)


def _layers(fn: Any) -> list[Any]:
    """What is called when ``fn`` is called, from the outside in; not what a wrapper may or may not call."""
    layers = [fn]
    while isinstance(fn, functools.partial):
        fn = fn.func
        layers.append(fn)
    if not inspect.isroutine(fn) and not inspect.isclass(fn):
        layers.append(type(fn).__call__)
    return layers


def _spelled(parameter: Parameter) -> str:
    if parameter.kind is Parameter.VAR_POSITIONAL:
        return f"*{parameter.name}"
    if parameter.kind is Parameter.VAR_KEYWORD:
        return f"**{parameter.name}"
    return f"{parameter.name!r} by position only"


def _signature(task: str, fn: Any) -> Signature:
    if isinstance(fn, functools.partial):
        # inspect knows how to bind; it only has to see the resolved signature of what is bound.
        return _bound(task, functools.partial(_stand_in(_signature(task, fn.func)), *fn.args, **fn.keywords))
    if inspect.ismethod(fn):
        return _bound(task, types.MethodType(_stand_in(_signature(task, fn.__func__)), fn.__self__))
    if not inspect.isroutine(fn) and not hasattr(fn, "__wrapped__") and not hasattr(fn, "__signature__"):
        call = type(fn).__call__
        if isinstance(call, types.FunctionType):
            return _bound(task, types.MethodType(_stand_in(_signature(task, call)), fn))
    own = _own_signature(task, fn)
    below = getattr(fn, "__wrapped__", None)
    if own is None:
        if below is None:
            raise AkadzeError(f"task {task!r}: the parameters of {type(fn).__name__} cannot be read; wrap it in a def")
        return _signature(task, below)
    passes_on = any(p.kind is Parameter.VAR_KEYWORD for p in own.parameters.values())
    return _merged(own, _signature(task, below)) if passes_on and callable(below) else own


def _bound(task: str, stand_in: Callable[..., Any]) -> Signature:
    try:
        return inspect.signature(stand_in)
    except (TypeError, ValueError) as error:
        raise AkadzeError(f"task {task!r} cannot be called with what is already bound to it: {error}") from None


def _stand_in(signature: Signature) -> Callable[..., Any]:
    def stand_in() -> None: ...

    stand_in.__signature__ = signature  # type: ignore[attr-defined] # the attribute that inspect reads
    return stand_in


def _own_signature(task: str, fn: Any) -> Signature | None:
    options: dict[str, Any] = {"follow_wrapped": False}
    if sys.version_info >= (3, 14):
        import annotationlib

        options["annotation_format"] = annotationlib.Format.FORWARDREF
    try:
        own = inspect.signature(fn, **options)
    except (TypeError, ValueError):
        return None  # written in C, or an odd __signature__
    home = _home(fn)
    return own.replace(
        parameters=[p.replace(annotation=_resolved(task, home, p)) for p in own.parameters.values()],
        return_annotation=Signature.empty,
    )


def _merged(own: Signature, below: Signature) -> Signature:
    """The wrapper's named parameters, then those of the wrapped function that ``*args, **kwargs`` passes on."""
    merged = {p.name: p for p in own.parameters.values() if p.kind in (*_NAMED, Parameter.POSITIONAL_ONLY)}
    for parameter in below.parameters.values():
        merged.setdefault(parameter.name, parameter)
    ordered = sorted(merged.values(), key=lambda p: p.kind)
    seen_default = False
    for place, parameter in enumerate(ordered):
        if parameter.kind is Parameter.POSITIONAL_OR_KEYWORD:
            if seen_default and parameter.default is Parameter.empty:
                # No def could say so, but by name the order does not matter.
                ordered[place] = parameter.replace(kind=Parameter.KEYWORD_ONLY)
            seen_default = seen_default or parameter.default is not Parameter.empty
    return Signature(sorted(ordered, key=lambda p: p.kind))


def _home(fn: Any) -> Any:
    """The function whose module the annotations were written in: ``functools.wraps`` copies them to the wrapper."""
    while True:
        below = getattr(fn, "__wrapped__", None)
        if below is None or getattr(below, "__annotations__", None) != getattr(fn, "__annotations__", None):
            return fn
        fn = below


def _resolved(task: str, home: Any, parameter: Parameter) -> Any:
    if parameter.annotation is Parameter.empty or parameter.kind not in _NAMED:
        return Any

    def carrier() -> None: ...

    carrier.__annotations__ = {"it": parameter.annotation}
    names = _globals(home)
    try:
        try:
            return typing.get_type_hints(carrier, globalns=names, include_extras=True)["it"]
        except NameError:
            # A name of the function body that the task is defined in, or a type parameter.
            enclosing = _enclosing_names(home)
            return typing.get_type_hints(carrier, globalns=names, localns=enclosing, include_extras=True)["it"]
    except Exception as error:  # evaluating an annotation runs whatever the user wrote there
        raise AkadzeError(
            f"task {task!r}: the annotation of {parameter.name!r} cannot be resolved "
            f"({type(error).__name__}: {error}); use a type that is importable in the task's module at run time"
        ) from error


def _globals(home: Any) -> dict[str, Any]:
    found = getattr(home, "__globals__", None)
    if found is None:
        module = sys.modules.get(getattr(home, "__module__", None) or "")
        found = vars(module) if module is not None else {}
    return typing.cast("dict[str, Any]", found)


def _enclosing_names(home: Any) -> Mapping[str, Any]:
    names: dict[str, Any] = {p.__name__: p for p in getattr(home, "__type_params__", ())}
    outer = getattr(home, "__qualname__", "").split(".<locals>")[:-1]
    wanted = {".<locals>".join(outer[: n + 1]) for n in range(len(outer))}
    frame = inspect.currentframe() if wanted else None
    while frame is not None:
        if frame.f_code.co_qualname in wanted and frame.f_globals is _globals(home):
            names = {**frame.f_locals, **names}  # inner frames come first and win
        frame = frame.f_back
    return names
