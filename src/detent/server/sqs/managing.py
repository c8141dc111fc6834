"""Queues made, found, changed, emptied and deleted; their attributes and tags."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from detent.errors import Denied, Exists
from detent.remote.rights import may_all
from detent.server.sqs.attributes import GROUP, is_text
from detent.server.sqs.call import SqsCall, may_see, missing, require_any
from detent.server.sqs.directory import Directory
from detent.server.sqs.errors import (
    INVALID_ATTRIBUTE_NAME,
    PURGE_IN_PROGRESS,
    QUEUE_EXISTS,
    UNSUPPORTED,
    Refused,
    invalid_value,
)
from detent.server.sqs.labels import ATTRIBUTE, TAG_KEY_MAX, TAG_VALUE_MAX, TAGS_MAX, tag_label, tag_name, tags_of
from detent.server.sqs.names import QueuePlace, check_name, is_fifo
from detent.server.sqs.settings import (
    DETENT_ALL,
    MODIFIED,
    NAMES,
    Changes,
    SettingsView,
    bad_policy,
    is_true,
    new_queue_settings,
    read_allow_policy,
    read_attributes,
    same,
)

if TYPE_CHECKING:
    from detent.store import AsyncStore

PAGE_MAX: Final = 1_000
"""Queues in one answer, as in SQS."""

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")


class Managing:
    """Administers queues for SQS clients; `deleted` is told the number of each queue that it deletes."""

    def __init__(
        self,
        store: AsyncStore,
        directory: Directory,
        place: QueuePlace,
        clock: Callable[[], float],
        deleted: Callable[[int], None],
    ) -> None:
        self._store = store
        self._directory = directory
        self._place = place
        self._clock = clock
        self._deleted = deleted
        self._purging: set[str] = set()

    async def create(self, call: SqsCall) -> dict[str, Any]:
        """CreateQueue: a new queue, or one that is there with these very attributes."""
        name, attributes = call.fields["QueueName"], call.fields.get("Attributes", {})
        check_name(name)
        call.caller.require("admin", "queue", name)
        if is_fifo(name) and not is_true(attributes.get("FifoQueue", "")):
            raise invalid_value("Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length")
        changes = read_attributes(name, attributes, None, fifo=is_fifo(name))
        await self._check(call, name, is_fifo(name), changes)
        changes.labels |= _tag_labels(call.fields.get("tags", {}))
        changes.labels[MODIFIED] = str(int(self._clock()))
        settings = {
            **new_queue_settings(name),
            **changes.settings,
            "labels": changes.laid_over({}),
        }
        queue: Any = self._store.queue(name)
        try:
            await queue.create(**settings)
            await self._set_dedup_window(changes)
        except Exists:
            view = await self._directory.look(name)
            if view.lacks_order:
                raise Refused(
                    QUEUE_EXISTS,
                    f"A queue already exists with the same name, and it is not a FIFO queue: it was made elsewhere, "
                    f"without the group header {GROUP}",
                ) from None
            _check_same(view, attributes, self._place)
        self._directory.forget(name)
        return {"QueueUrl": call.base_url + name}

    async def _check(self, call: SqsCall, name: str, fifo: bool, changes: Changes) -> None:
        """What attributes ask for beyond the queue itself needs rights beyond it."""
        if changes.filters and not may_all(call.caller, "consume", "queue"):
            raise Denied(f"{call.caller.name} may not give {name!r} a filter: it would pick from queues not its own")
        if changes.dedup_window_s is not None:
            call.caller.require_everywhere("admin")
        if changes.dead_letter:
            call.caller.require("publish", "queue", changes.dead_letter)
            try:
                await self._check_dead_letter(name, fifo, changes.dead_letter)
            except _BadTarget as error:
                raise bad_policy(call.fields["Attributes"]["RedrivePolicy"], str(error)) from error

    async def _check_dead_letter(self, source: str, fifo: bool, name: str) -> None:
        try:
            target = await self._directory.look(name)
        except Refused as error:
            raise _BadTarget("Dead letter target does not exist.") from error
        if target.is_fifo != fifo:
            raise _BadTarget("Dead-letter queue must be same type of queue as the source.")
        policy = target.labels.get(ATTRIBUTE + "RedriveAllowPolicy")
        if policy is None:
            return
        permission, sources = read_allow_policy(policy)
        if permission == "denyAll" or (permission == "byQueue" and source not in sources):
            raise _BadTarget("The dead-letter queue's RedriveAllowPolicy does not allow this source.")

    async def _set_dedup_window(self, changes: Changes) -> None:
        if changes.dedup_window_s is not None:
            await self._store.set_dedup_window(f"{changes.dedup_window_s}s")

    async def url(self, call: SqsCall) -> dict[str, Any]:
        """GetQueueUrl."""
        name = call.fields["QueueName"]
        check_name(name)
        require_any(call.caller, name)
        await self._directory.find(name)
        return {"QueueUrl": call.base_url + name}

    async def queues(self, call: SqsCall) -> dict[str, Any]:
        """ListQueues: those that the caller may do anything with."""
        views = await self._directory.all(call.fields.get("QueueNamePrefix", ""))
        return _page(call, "QueueUrls", [view.name for view in views])

    async def sources(self, call: SqsCall) -> dict[str, Any]:
        """ListDeadLetterSourceQueues."""
        view = await self._directory.find(call.known_queue())
        views = await self._directory.all()
        return _page(call, "queueUrls", [one.name for one in views if one.dead_letter == view.name])

    async def attributes(self, call: SqsCall) -> dict[str, Any]:
        """GetQueueAttributes."""
        names: list[str] = call.fields.get("AttributeNames", [])
        for name in names:
            if name not in NAMES:
                raise Refused(INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {name[:100]}.")
        view = await self._directory.look(call.known_queue())
        if not names:
            return {}
        own, detents = view.attributes(self._place), view.detent_attributes()
        found = own | detents
        chosen = {name: found[name] for name in names if name in found}
        chosen |= (own if "All" in names else {}) | (detents if DETENT_ALL in names else {})
        return {"Attributes": chosen} if chosen else {}

    async def set_attributes(self, call: SqsCall) -> None:
        """SetQueueAttributes."""
        name, attributes = call.queue("admin"), call.fields["Attributes"]
        async with self._directory.changing(name):
            view = await self._directory.look(name)
            changes = read_attributes(name, attributes, view.labels, fifo=view.is_fifo)
            await self._check(call, name, view.is_fifo, changes)
            await self._change(view, changes)
            await self._set_dedup_window(changes)

    async def _change(self, view: SettingsView, changes: Changes) -> None:
        changes.labels[MODIFIED] = str(int(self._clock()))
        settings = {**changes.settings, "labels": changes.laid_over(view.labels)}
        queue: Any = self._store.queue(view.name)
        try:
            await queue.configure(**settings)
        finally:
            self._directory.forget(view.name)

    async def purge(self, call: SqsCall) -> None:
        """PurgeQueue: all messages go, those in flight too, and what the queue remembers of deduplication ids."""
        name = call.queue("admin")
        await self._directory.look(name)
        if name in self._purging:
            raise Refused(PURGE_IN_PROGRESS, f"Only one PurgeQueue operation on {name} is allowed at a time.")
        self._purging.add(name)
        try:
            await self._store.queue(name).purge(in_flight=True, keys=True)
        finally:
            self._purging.discard(name)

    async def delete(self, call: SqsCall) -> None:
        """DeleteQueue."""
        name = call.queue("admin")
        view = await self._directory.look(name)
        await self._store.queue(name).delete()
        self._directory.forget(name)
        self._deleted(view.number)

    # -- tags ---------------------------------------------------------------------------------------------------

    async def tags(self, call: SqsCall) -> dict[str, Any]:
        """ListQueueTags."""
        view = await self._directory.look(call.known_queue())
        found = tags_of(view.labels)
        return {"Tags": found} if found else {}

    async def tag(self, call: SqsCall) -> None:
        """TagQueue."""
        name, labels = call.queue("admin"), _tag_labels(call.fields["Tags"])
        if not labels:
            raise missing("Tags")
        async with self._directory.changing(name):
            view = await self._directory.look(name)
            if len(tags_of(view.labels | labels)) > TAGS_MAX:
                raise invalid_value(f"A queue has at most {TAGS_MAX} tags.")
            await self._change(view, Changes(name, labels=dict(labels)))

    async def untag(self, call: SqsCall) -> None:
        """UntagQueue."""
        name, keys = call.queue("admin"), call.fields["TagKeys"]
        if not keys:
            raise missing("TagKeys")
        async with self._directory.changing(name):
            view = await self._directory.look(name)
            await self._change(view, Changes(name, labels={tag_name(key): None for key in keys}))

    async def permission(self, call: SqsCall) -> None:
        """AddPermission and RemovePermission, which have no meaning here."""
        call.queue("admin")
        raise Refused(
            UNSUPPORTED, "Queues have no permissions of their own here: give the server's credentials other grants."
        )


class _BadTarget(Exception):
    """Why a queue cannot be the dead-letter queue of another one."""


def _tag_labels(tags: dict[str, str]) -> dict[str, str]:
    if len(tags) > TAGS_MAX:
        raise invalid_value(f"A queue has at most {TAGS_MAX} tags.")
    for key, value in tags.items():
        if not 1 <= len(key) <= TAG_KEY_MAX or len(value) > TAG_VALUE_MAX:
            raise invalid_value(
                f"A tag has a key of 1 to {TAG_KEY_MAX} characters and a value of up to {TAG_VALUE_MAX}."
            )
        if _CONTROL.search(key + value) or not is_text(key + value):
            raise invalid_value(f"The tag {key!r} has characters that no tag can have.")
    return dict(tag_label(key, value) for key, value in tags.items())


def _check_same(view: SettingsView, attributes: dict[str, str], place: QueuePlace) -> None:
    known = view.attributes(place) | view.detent_attributes()
    for name, value in attributes.items():
        if not same(name, value, known.get(name)):
            raise Refused(
                QUEUE_EXISTS,
                f"A queue already exists with the same name and a different value for attribute {name}",
            )


def _page(call: SqsCall, field: str, names: list[str]) -> dict[str, Any]:
    """A page of queue URLs, and a token for the next one: the last name of this one."""
    size = call.number("MaxResults", 1, PAGE_MAX)
    token = call.fields.get("NextToken")
    after = "" if not token else _name_of_token(token)
    shown = [name for name in names if name > after and may_see(call.caller, name)]
    page = shown[: size or PAGE_MAX]
    found: dict[str, Any] = {field: [call.base_url + name for name in page]}
    if size is not None and len(shown) > len(page):
        found["NextToken"] = urlsafe_b64encode(page[-1].encode()).decode()
    return found if page or field == "queueUrls" else {}


def _name_of_token(token: str) -> str:
    try:
        name = urlsafe_b64decode(token).decode("ascii")
    except ValueError as error:
        raise invalid_value("Invalid or expired next token.") from error
    check_name(name)
    return name
