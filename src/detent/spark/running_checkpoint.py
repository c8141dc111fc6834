"""Whether a stream's checkpoint can be read: what Spark says of one that cannot is about its parser, not the file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

_NAMED: Final = re.compile(r"(?:Failed to read log file|Checksum error:) (\S+?)\.?(?:\s|$)")
_NO_METADATA: Final = "STREAMING_CHECKPOINT_MISSING_METADATA_FILE"
_NO_BATCH: Final = re.compile(r"batch (\d+) doesn't exist")
_VERSION: Final = re.compile(r"v\d+")
_LOGS: Final = ("offsets", "commits")


def damage(folder: str, said: str) -> str:
    """What is wrong with a checkpoint, as far as Spark's words name it or a look finds it; empty if nothing is."""
    named = _NAMED.search(said)
    if named is not None:
        return f"{named[1].removeprefix('file:')} cannot be read"
    if _NO_METADATA in said:
        return f"{folder}/metadata is missing"
    missing = _NO_BATCH.search(said)
    if missing is not None:
        return f"{folder}/offsets/{missing[1]} is missing"
    parts = urlsplit(folder)
    if parts.scheme not in {"", "file"}:
        return ""
    return _look(Path(unquote(parts.path) if parts.scheme else folder))


def _look(folder: Path) -> str:
    if not folder.is_dir():
        return ""
    if _metadata_is_broken(folder / "metadata"):
        return f"{folder}/metadata is not what Spark writes"
    newest: dict[str, int] = {}
    for log in _LOGS:
        if (folder / log).exists() and not (folder / log).is_dir():
            return f"{folder}/{log} is not a folder"
        numbers = sorted(int(path.name) for path in (folder / log).glob("*") if path.name.isdigit())
        if numbers:
            newest[log] = numbers[-1]
            if not _is_entry(folder / log / str(numbers[-1])):
                return f"{folder}/{log}/{numbers[-1]} is not what Spark writes"
    committed = newest.get("commits", -1)
    return f"{folder}/offsets/{committed} is missing" if committed > newest.get("offsets", -1) else ""


def _metadata_is_broken(path: Path) -> bool:
    if not path.exists():
        return False
    found = _json(path.read_bytes())
    return not isinstance(found, dict) or "id" not in found


def _is_entry(path: Path) -> bool:
    """Whether a file is an entry of a log: a version, then a line of JSON, or none of a source, for each part."""
    version, *lines = path.read_text(errors="replace").splitlines() or [""]
    return bool(_VERSION.fullmatch(version)) and bool(lines) and all(_is_part(line) for line in lines)


def _is_part(line: str) -> bool:
    return line == "-" or _json(line.encode()) is not None


def _json(data: bytes) -> object:
    try:
        return json.loads(data)
    except ValueError:
        return None
