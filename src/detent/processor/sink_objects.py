"""Deliveries as objects: one each, in a folder or a bucket, under a name that only one put can take."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from detent.errors import Conflict, Exists, Invalid, NotFound
from detent.kv import Objects, absolute_url, open_objects
from detent.processor.sink_base import Delivered, DeliverySink, bytes_of, chosen
from detent.processor.step import Step


class ObjectSink(DeliverySink):
    """An object for each delivery, exactly once.

    >>> graph.sink(input="reports", name="archive")(ObjectSink("s3://shop/reports"))
    >>> graph.sink(input="reports", name="archive")(
    ...     ObjectSink("file:./reports", name=lambda message, step: f"2027/{step.key}.json")
    ... )

    `url` is a folder (``file:PATH``), or a prefix of a bucket (``s3://``, ``gs://``, ``az://``), for which credentials
    come from the environment; ``memory:NAME`` is for tests. It must not be that of a store.

    Objects are called after the delivery key, or by what `name` answers for the message: ASCII letters, digits, ``.``,
    ``_``, ``-`` and ``/``. They hold the message's body, or what `content` answers: bytes, text, or anything that
    becomes JSON. Both functions get the step, too, if they have a parameter of that name.

    An object is put only where there is none of its name. One that is there under a name with the delivery key in it is
    this same delivery: the first one stays, even if `content` answered something else this time. Under any other name
    it has to be the same, byte by byte; if it is not, two deliveries have one name, and that is a `Conflict`. `compare`
    says it otherwise: True compares always, False never.

    Do not remove the objects of the last minutes. A process that died, or stood still, right after it
    had put one puts it again if it finds it gone. In a folder, files that end in ``.part~`` are not finished.
    """

    def __init__(
        self,
        url: str,
        *,
        name: Callable[..., str] | None = None,
        content: Callable[..., Any] | None = None,
        compare: bool | None = None,
    ) -> None:
        super().__init__()
        self._url = absolute_url(url)
        self._name = chosen(name, "name")
        self._content = chosen(content, "content")
        self._compare = compare
        self._objects: dict[int, Objects] = {}

    def __call__(self, value: Delivered, step: Step) -> None:
        name = step.key if self._name is None else self._name(value, step)
        if not isinstance(name, str):
            raise Invalid(f"name answers the name of an object, which is text, and not {name!r}")
        data = bytes_of(value if self._content is None else self._content(value, step), "content")
        objects = self._opened()
        try:
            objects.put(name, [data])
        except Exists:
            compares = not _has_key(name, step.key) if self._compare is None else self._compare
            if compares and not _holds(objects, name, data):
                raise Conflict(
                    f"there is an object {name!r} in {self._url} already, with other bytes than delivery {step.key} "
                    "has for it: nothing was changed. Have name=... answer a name of its own for each delivery, such "
                    "as one with step.key in it"
                ) from None

    def _opened(self) -> Objects:
        return self._of_this_process(self._objects, lambda: open_objects(self._url))


def _has_key(name: str, key: str) -> bool:
    """Whether a name is this delivery's alone. Its key ends with a number, which more digits would make another one."""
    return re.search(rf"{re.escape(key)}(?!\d)", name) is not None


def _holds(objects: Objects, name: str, data: bytes) -> bool:
    """Whether an object is these bytes; one that was just removed is none."""
    try:
        return objects.size(name) == len(data) and objects.get(name) == data
    except NotFound:
        return False
