"""How to install an extra of Detent: from where Detent itself was installed.

Another project has the name `detent` on PyPI, so `pip install 'detent[sql]'` is printed only where
that is how Detent came onto this machine.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import urllib.parse
import urllib.request

__all__ = ["install_command"]


def install_command(extra: str) -> str:
    """The command that adds an extra to this installation."""
    before, after = _around_extra()
    return f"{before}[{extra}]{after}"


@functools.cache
def _around_extra() -> tuple[str, str]:
    try:
        recorded = importlib.metadata.distribution("detent").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:  # a source tree that is only on the path
        recorded = None
    if recorded is None:
        return "pip install 'detent", "'"
    written = json.loads(recorded)
    url = urllib.parse.urlsplit(written["url"])
    if url.scheme != "file":
        return "pip install 'detent", f" @ {written['url']}'"
    option = "--editable " if written.get("dir_info", {}).get("editable") else ""
    return f"pip install {option}'{urllib.request.url2pathname(url.path)}", "'"
