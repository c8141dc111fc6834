"""A processor's function: how its parameters are filled from messages."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec

from detent.errors import Invalid
from detent.journal import Message
from detent.processor.declaration import Processor
from detent.processor.inputs import Set
from detent.processor.step import Step

STEP: Final = "step"
"""The name of the parameter that gets the step."""

Convert = Callable[[Message], Any]
Decode = Callable[[bytes], Any]


class Function:
    """A processor's function, and how its parameters are filled."""

    def __init__(self, processor: Processor, run_coroutine: Callable[[Any], Any] | None) -> None:
        self.called = _awaited(processor, run_coroutine)
        """The function, as one that answers what it comes to: a coroutine is run."""
        self.yields = processor.is_generator
        self.whole = processor.whole
        inputs = len(processor.inputs) if processor.mode == "zip" else 1
        decoders, self.wants_step = _parameters(processor, inputs)
        self.converts = [_convert(decode) for decode in decoders]
        self.is_plain = len(decoders) == 1 and not (self.wants_step or self.yields or self.whole)
        """Whether it takes one message, or what its body is decoded to, and asks for nothing else."""
        self.takes_message = self.is_plain and decoders[0] is None
        self.decode = None if decoders[0] is bytes else decoders[0]
        """From a body to what a plain function takes; None if it takes the body or the message."""

    def call(self, messages: Set | Sequence[Set], step: Step | None) -> Any:
        """Its answer for an input set, or for a whole batch of them."""
        if self.whole:
            arguments: list[Any] = [
                [None if one[index] is None else convert(one[index]) for one in messages]  # type: ignore[index]
                for index, convert in enumerate(self.converts)
            ]
        elif len(self.converts) == 1:
            arguments = [self.converts[0](messages[0])]  # type: ignore[arg-type]
        else:
            arguments = [
                None if message is None else convert(message)  # type: ignore[arg-type]
                for convert, message in zip(self.converts, messages, strict=True)
            ]
        return self.called(*arguments, step=step) if self.wants_step else self.called(*arguments)

    def ask(self, cursor: Any, step: Step | None) -> Any:
        """The answer of a source."""
        return self.called(cursor, step=step) if self.wants_step else self.called(cursor)


def _awaited(processor: Processor, run_coroutine: Callable[[Any], Any] | None) -> Callable[..., Any]:
    function = processor.function
    assert function is not None
    if run_coroutine is None or not processor.is_async:
        return function
    return lambda *values, **named: run_coroutine(function(*values, **named))


def _parameters(processor: Processor, inputs: int) -> tuple[list[Decode | None], bool]:
    """How the body of each input becomes an argument, None where the whole message does, and whether the function wants
    the step."""
    function = processor.function
    assert function is not None
    named = f"the function of {processor.name!r}"
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise Invalid(f"{named} does not say which parameters it has: {error}") from error
    wants_step = _wants_step(parameters, inputs, named)
    while isinstance(function, functools.partial):
        function = function.func
    hints = _hints(function if inspect.isroutine(function) else type(function).__call__, named)
    positional = [one for name, one in parameters.items() if name != STEP and one.kind in _POSITIONAL]
    required = [one for one in positional if one.default is one.empty]
    varied = any(one.kind is one.VAR_POSITIONAL for one in parameters.values())
    demanded = [name for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY and one.default is one.empty]
    if len(required) > inputs or (len(positional) < inputs and not varied) or set(demanded) - {STEP}:
        what = "a list for each of its inputs" if processor.whole else "a parameter for each of its inputs"
        raise Invalid(
            f"{named} takes {what}, {inputs} in all, and if it wants one named {STEP!r}; it has "
            f"{', '.join(parameters) or 'none'}"
        )
    kinds = [hints.get(one.name, Any) for one in positional[:inputs]]
    kinds += [Any] * (inputs - len(kinds))
    return [_decoder(_element(kind) if processor.whole else kind) for kind in kinds], wants_step


def _wants_step(parameters: Mapping[str, inspect.Parameter], inputs: int, named: str) -> bool:
    """Whether there is a parameter for the step. It is given by name, and the inputs in their order."""
    if STEP not in parameters:
        return False
    positional = [name for name, one in parameters.items() if one.kind in _POSITIONAL]
    if (STEP in positional[:inputs] and len(positional) > inputs) or parameters[
        STEP
    ].kind is inspect.Parameter.POSITIONAL_ONLY:
        raise Invalid(f"{named} has {STEP!r} where an input belongs: put it behind its other parameters")
    return True


def _hints(function: Any, named: str) -> dict[str, Any]:
    """What each parameter is annotated with. What the function returns does not matter, and may be a name that is
    only there for a type checker; a parameter that is annotated so would be filled with something else than it says."""
    try:
        written = dict(getattr(function, "__annotations__", {}))
        return get_type_hints(_Annotated({name: kind for name, kind in written.items() if name != "return"}, function))
    except (NameError, AttributeError) as error:
        raise Invalid(
            f"{named} has an annotation that cannot be found when it runs: {error}. Import it there, or leave it out"
        ) from error
    except TypeError:
        return {}


class _Annotated:
    """Some annotations of a function, for who looks them up where they were written."""

    def __init__(self, annotations: dict[str, Any], function: Any) -> None:
        self.__annotations__ = annotations
        self.__globals__ = getattr(inspect.unwrap(function), "__globals__", {})


_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _element(kind: Any) -> Any:
    """What a list is of."""
    arguments = getattr(kind, "__args__", ())
    return arguments[0] if arguments else Any


def _decoder(kind: Any) -> Decode | None:
    """From a body to what a parameter is declared to be: its bytes, or JSON; None for a `Message`. A message that a
    filter holds back is None, so that parameters may say so, too."""
    if get_origin(kind) in {Union, types.UnionType} and {Message, bytes}.intersection(get_args(kind)):
        rest = [one for one in get_args(kind) if one is not type(None) and get_origin(one) is not list]  # of a batch
        kind = rest[0] if len(rest) == 1 else kind
    if kind is Message:
        return None
    if kind is bytes:
        return bytes
    try:
        decode: Decode = msgspec.json.Decoder(kind).decode
    except TypeError as error:
        raise Invalid(f"a message does not become a {kind}: {error}") from error
    return decode


def _convert(decode: Decode | None) -> Convert:
    if decode is None:
        return lambda message: message
    if decode is bytes:
        return lambda message: message.body
    return lambda message: decode(message.body)
