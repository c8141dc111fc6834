"""A queue's settings: a new queue's, how a change is laid over what was, and what they mean for a message."""

from __future__ import annotations

from typing import Final

from detent.codec.group import GROUP_BYTES_MAX
from detent.codec.queue import Config
from detent.errors import Invalid, LimitExceeded
from detent.queue import operations as ops
from detent.queue.filters import Filter, default_filter
from detent.runtime.backoff import growing
from detent.settings.queue import DONE_RETENTION_S, MAX_ATTEMPTS, QUEUE, LabelPairs
from detent.settings.setting import Text

PRIORITY_HEADER: Final[str] = Config._field_defaults["priority_header"]
"""The header that holds the priority, unless a queue says otherwise."""

PRIORITY_MAX: Final = 255


def new_config(name: str, number: int, now_ms: int, settings: ops.Settings) -> Config:
    """The settings of a new queue."""
    config = Config(
        filter=default_filter(name),
        max_attempts=MAX_ATTEMPTS,
        done_retention_s=DONE_RETENTION_S,
        number=number,
        created_ms=now_ms,
    )
    return changed(name, config, settings)


def changed(name: str, config: Config, settings: ops.Settings) -> Config:
    """The settings with those laid over them that are given; refused if they do not go together."""
    fields = settings.__struct_fields__
    changes = {field: value for field in fields if (value := getattr(settings, field)) is not None}
    if settings.labels is not None:
        changes["labels"] = tuple(sorted(settings.labels.items()))
    new = config._replace(**changes)
    _check(new, lease_given=settings.lease_ms is not None)
    if new.dead_letter == name:
        raise Invalid(f"{name!r} cannot be its own dead letter queue: name another one, or none")
    if new.lease_ms > new.lease_max_ms:
        new = new._replace(lease_ms=new.lease_max_ms)
    if new.backoff_ms > new.backoff_max_ms:
        if settings.backoff_max_ms is not None:
            raise Invalid(f"the back-off starts at {new.backoff_ms} ms, above its maximum of {new.backoff_max_ms} ms")
        new = new._replace(backoff_max_ms=new.backoff_ms)
    if new.filter != config.filter:
        Filter(new.filter)
        new = new._replace(generation=config.generation + 1)
    return new


def _check(config: Config, *, lease_given: bool) -> None:
    QUEUE.check(config)
    if lease_given and config.lease_ms > config.lease_max_ms:
        raise Invalid(f"a default lease of {config.lease_ms} ms is above the maximum of {config.lease_max_ms} ms")
    for setting in QUEUE:
        if isinstance(setting, Text) and setting.bytes_max is not None:
            ops.check_text(getattr(config, setting.key), setting.bytes_max, setting.subject)
    _check_labels(config.labels)
    if config.dead_letter:
        ops.check_name(config.dead_letter)


def _check_labels(labels: LabelPairs) -> None:
    if len(labels) > ops.LABELS_MAX:
        raise LimitExceeded(f"a queue has at most {ops.LABELS_MAX} labels, not {len(labels)}")
    for name, value in labels:
        ops.check_text(name, ops.LABEL_NAME_BYTES_MAX, "a label's name")
        ops.check_text(value, ops.LABEL_VALUE_BYTES_MAX, "a label")
        if not name:
            raise Invalid("a label has a name: give it one of at least one character")
    size = sum(len(name.encode()) + len(value.encode()) for name, value in labels)
    if size > ops.LABELS_BYTES_MAX:
        raise LimitExceeded(f"labels of together {size} bytes are over the limit of {ops.LABELS_BYTES_MAX}")


def settings_of(config: Config) -> ops.Settings:
    """All settings of a queue."""
    held = {key: getattr(config, key) for key in QUEUE.by_key}
    return ops.Settings(**{**held, "labels": dict(config.labels)})


def backoff_ms(config: Config, attempts: int) -> int:
    """How long a message waits after its nth attempt: twice as long each time, up to the maximum."""
    return growing(config.backoff_ms, config.backoff_max_ms, attempts)


def is_priority(text: str) -> bool:
    """Whether a header's text is a priority."""
    return len(text) <= 3 and text.isascii() and text.isdigit() and int(text) <= PRIORITY_MAX


def priority_of(config: Config, headers: dict[str, str]) -> int:
    """The priority that a message's header gives it; lower is more urgent. Another text is refused when a message is
    published; a message that comes to the queue later all the same has the usual priority."""
    text = headers.get(config.priority_header)
    return ops.DEFAULT_PRIORITY if text is None or not is_priority(text) else int(text)


def group_of(config: Config, headers: dict[str, str]) -> bytes | None:
    """The group that a message's header puts it into. A name that is too long is refused when a message is published;
    one that comes to the queue later all the same is cut, so that order is kept for more messages rather than fewer."""
    if not config.group_header:
        return None
    value = headers.get(config.group_header)
    return None if value is None else value.encode()[:GROUP_BYTES_MAX]
