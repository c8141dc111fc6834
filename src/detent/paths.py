"""A path where a store's URL is expected: ``./data`` is ``file:./data``, on the command line and in Python alike."""

from __future__ import annotations

import os


def as_url(text: str | os.PathLike[str]) -> str:
    """A store's URL, or a path as one: ./data is file:./data. A name without a slash is a path if it is a directory.

    >>> as_url("./data"), as_url("a/b"), as_url("s3://bucket/data"), as_url("data")
    ('file:./data', 'file:a/b', 's3://bucket/data', 'data')
    """
    if isinstance(text, os.PathLike):
        return path_url(os.fspath(text))
    return path_url(text) if isinstance(text, str) and _is_path(text) else text


def path_url(path: str) -> str:
    """The URL of a directory. A percent sign is one, and two slashes in front are no host."""
    plain = f"/{path.lstrip('/')}" if path.startswith("/") else path
    return "file:" + plain.replace("%", "%25")


def _is_path(text: str) -> bool:
    """Whether a text is a path: it has a slash, begins with a dot, or is a directory's name; and it has no scheme."""
    if "\x00" in text:
        return False
    if text.startswith((".", "/")):
        return True
    return ":" not in text.split("/", 1)[0] and ("/" in text or os.path.isdir(text))
