"""Handlers: which function takes which messages, and where its other parameters come from.

A handler is a function whose first parameter is the message; or a class that is made for each message, with what its
``__init__`` asks for, and then called with it. Parameters are found by their type or by their name, and that all can be
found is checked when the app starts, not at the first message.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from detent.bus.calling import UserCaller, is_coroutine_function
from detent.bus.sending import Context
from detent.errors import Invalid

DEPTH_MAX: Final = 32
"""How deep dependencies may depend on each other: beyond that they do so in a circle."""

_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_FIRST: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A parameter that has to be given something."""

    name: str
    kind: Any
    is_optional: bool


@dataclass(frozen=True, slots=True)
class Handler:
    """A function or a class that handles messages, and what it asks for."""

    target: Callable[..., Any]
    classes: tuple[type, ...]
    wanted: tuple[Wanted, ...]
    made_with: tuple[Wanted, ...] | None
    """Of a class: what it is made with."""
    is_async: bool
    """Whether it has to be awaited."""

    @property
    def name(self) -> str:
        """How errors call it."""
        return str(getattr(self.target, "__qualname__", type(self.target).__qualname__))


def new_handler(target: Any, classes: tuple[type, ...]) -> Handler:
    """A handler for these classes of messages; or, if there are none, for those that its first parameter is of."""
    call: Any
    if isinstance(target, type):
        made = inspect.getattr_static(target, "__init__")  # also an inherited one
        made_with = _wanted(made, target, skip=1) if "__init__" in _own_names(target) else ()
        call = target.__call__
        if "__call__" not in _own_names(target):
            raise Invalid(
                f"{target.__qualname__} has no __call__: a handler that is a class is called with the message"
            )
        skip = 1
    elif callable(target):
        made_with, call, skip = None, target, 0
    else:
        raise Invalid(f"{target!r} is not a handler: give a function that takes a message, or a class with __call__")
    named = getattr(target, "__qualname__", type(target).__qualname__)
    parameters = list(inspect.signature(call).parameters.values())[skip:]
    if not parameters or parameters[0].kind not in _FIRST:
        raise Invalid(f"{named} takes no message: its first parameter is the message")
    refuse_generator(call, named)
    found = classes or _classes_of(_hints(call).get(parameters[0].name), named)
    is_async = is_coroutine_function(call)
    return Handler(target, found, _wanted(call, target, skip=skip + 1), made_with, is_async)


def refuse_generator(function: Any, name: str) -> None:
    """Calling a function with ``yield`` in it runs nothing of it."""
    plain = inspect.unwrap(function.func if isinstance(function, functools.partial) else function)
    for one in (plain, getattr(plain, "__call__", None)):  # noqa: B004
        if inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one):
            raise Invalid(f"{name} has a yield in it, so that calling it would run nothing: take it out")


def refuse_unfinished(answer: Any, name: str) -> None:
    """What was called has done nothing yet, and would count as done."""
    if inspect.isawaitable(answer) or inspect.isgenerator(answer) or inspect.isasyncgen(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise Invalid(
            f"{name} answers something to await or to go through, and is not async def: then nothing of that would "
            "have run. Make it one, or do it within"
        )


def _own_names(cls: type) -> set[str]:
    return {name for base in cls.__mro__[:-1] for name in base.__dict__}


def _classes_of(hint: Any, name: str) -> tuple[type, ...]:
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if hint is None or not all(isinstance(option, type) for option in options):
        raise Invalid(
            f"{name} does not say which messages it takes: annotate its first parameter with a class that can be found "
            "from where the function is, or write @bus.handler(OrderPlaced)"
        )
    return tuple(options)


def _hints(call: Any) -> dict[str, Any]:
    if isinstance(call, type):
        plain = call.__init__  # type: ignore[misc]
    else:
        plain = call if inspect.isroutine(call) else type(call).__call__
    try:
        return typing.get_type_hints(plain)
    except (NameError, TypeError, AttributeError):  # a class that lives in a function, or that only a type checker sees
        return _some_hints(plain)


def _some_hints(call: Any) -> dict[str, Any]:
    """Those hints that can be found."""
    found: dict[str, Any] = {}
    closure = inspect.getclosurevars(call).nonlocals if inspect.isfunction(call) else {}
    for parameter, hint in getattr(call, "__annotations__", {}).items():
        if not isinstance(hint, str):
            found[parameter] = hint
            continue
        try:
            found[parameter] = eval(hint, getattr(call, "__globals__", {}), dict(closure))  # as typing does
        except (NameError, AttributeError, TypeError, SyntaxError):
            found[parameter] = None  # then its name says what it is
    return found


def _wanted(call: Any, target: Any, *, skip: int) -> tuple[Wanted, ...]:
    hints = _hints(call)
    parameters = list(inspect.signature(call).parameters.values())[skip:]
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise Invalid(f"the parameter {parameter.name!r} of {target} cannot be given by name: leave out the '/'")
    return tuple(
        Wanted(one.name, hints.get(one.name), one.default is not inspect.Parameter.empty)
        for one in parameters
        if one.kind in _NAMED
    )


# -- what parameters are given ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Dependencies:
    """What handlers can ask for, by type or by name: values, or functions that make one for each message."""

    values: dict[Any, Any] = field(default_factory=dict)
    makers: dict[Any, tuple[Callable[..., Any], tuple[Wanted, ...]]] = field(default_factory=dict)

    def add(self, key: type | str, value: Any) -> None:
        """The same value for every message."""
        self._check(key)
        self.values[key] = value

    def add_maker(self, key: type | str, make: Callable[..., Any]) -> None:
        """A value for each message, made by a function whose parameters are found in the same way."""
        self._check(key)
        if not callable(make):
            raise Invalid(f"what makes {key!r} is a function, not {make!r}")
        self.makers[key] = (make, _wanted(make, make, skip=0))

    def _check(self, key: Any) -> None:
        if not isinstance(key, type | str):
            raise Invalid(f"handlers ask for things by type or by name, not by {key!r}")
        if key in self.values or key in self.makers:
            raise Invalid(f"{key!r} is provided twice")
        if key in ("context", Context):
            raise Invalid("the context of a message cannot be replaced")

    @property
    def is_async(self) -> bool:
        """Whether making one of them has to be awaited."""
        return any(is_coroutine_function(make) for make, _ in self.makers.values())

    def check(self, wanted: tuple[Wanted, ...], provided: frozenset[Any], name: str, depth: int = 0) -> None:
        """`Invalid` unless all of that can be given."""
        if depth > DEPTH_MAX:
            raise Invalid(f"what {name} asks for is made from itself: take one of the dependencies out of the circle")
        for one in wanted:
            key = self._key(one, provided)
            if key in self.makers:
                self.check(self.makers[key][1], provided, f"the maker of {key!r}", depth + 1)
            elif key is None and not one.is_optional:
                kind = f" ({one.kind.__name__})" if isinstance(one.kind, type) else ""
                raise Invalid(
                    f"{name} asks for {one.name!r}{kind}, which is not provided: there is {self._listed(provided)}. "
                    f"Provide it with bus.provide({one.name!r}, ...), or give the parameter a default"
                )

    def _key(self, one: Wanted, provided: frozenset[Any]) -> Any:
        """By which key a parameter is found: its type before its name."""
        for key in (one.kind, one.name):
            if key in ("context", Context) or key in provided or key in self.values or key in self.makers:
                return key
        return None

    def _listed(self, provided: frozenset[Any]) -> str:
        keys = ["context", *provided, *self.values, *self.makers]
        return ", ".join(sorted({key.__name__ if isinstance(key, type) else repr(key) for key in keys}))

    async def give(
        self,
        caller: UserCaller,
        wanted: tuple[Wanted, ...],
        context: Context,
        unit: Mapping[Any, Any],
        made: dict[Any, Any],
    ) -> dict[str, Any]:
        """What each parameter is given. `made` keeps what was made for this message."""
        given: dict[str, Any] = {}
        provided = frozenset(unit)
        for one in wanted:
            key = self._key(one, provided)
            if key in ("context", Context):
                given[one.name] = context
            elif key in unit:
                given[one.name] = unit[key]
            elif key in self.values:
                given[one.name] = self.values[key]
            elif key in self.makers:
                if key not in made:
                    make, needs = self.makers[key]
                    made[key] = await caller.user(make, **await self.give(caller, needs, context, unit, made))
                given[one.name] = made[key]
        return given


async def invoke(
    caller: UserCaller,
    handler: Handler,
    dependencies: Dependencies,
    context: Context,
    unit: Mapping[Any, Any],
    made: dict[Any, Any],
) -> Any:
    """Call a handler with the message, and with what it asks for."""
    given = await dependencies.give(caller, handler.wanted, context, unit, made)
    target = handler.target
    if handler.made_with is not None:
        parts = await dependencies.give(caller, handler.made_with, context, unit, made)
        target = await caller.blocking(functools.partial(target, **parts))
    answer = await caller.user(target, context.message, **given)
    refuse_unfinished(answer, handler.name)
    return answer
