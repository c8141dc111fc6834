"""The harness that runs the pages of the documentation fails where a page is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from pages import Block, Page, blocks_of, is_output, missing_lines, unused_files, with_ports
from processes import Processes

KILLED = "kill -9 $(cat pid); until grep -q 'State:.Z' /proc/$(cat pid)/status; do sleep 0.01; done"
"""Ends a program in the background, and waits until it has ended."""


def printed_by(text: str, tmp_path: Path, processes: Processes) -> str:
    """What the blocks of a page print."""
    path = tmp_path / "page.md"
    path.write_text(text)
    with Page(path, tmp_path / "reader", processes) as page:
        page.run()
        return page.printed


def test_blocks_share_a_folder_a_shell_and_a_module(tmp_path: Path, processes: Processes) -> None:
    page = """
```python
# made.py  with a remark
NUMBER = 7
```

```sh
GREETING=hello
```

```python
from made import NUMBER
print("the number is", NUMBER)
```

It prints

```
the number is ...
```

```sh
echo $GREETING; ls
```

```python
print(NUMBER + 1)
```
"""
    lines = printed_by(page, tmp_path, processes).splitlines()
    assert [line for line in lines if line != "__pycache__"] == ["the number is 7", "hello", "made.py", "8"]


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ("```sh\nfalse\n```\n", "failed"),
        ("```sh\nfalse | true\n```\n", "failed"),
        ("```sh\necho $UNSET\n```\n", "failed"),
        ("```python\n1 / 0\n```\n", "ZeroDivisionError"),
        ("```sh\necho one\n```\n\n```\ntwo\n```\n", "not printed"),
        ("```sh background\ntrue\n```\n", "ended"),
        (f"```sh background\necho $$ > pid; echo ready; sleep 60\n```\n```sh\n{KILLED}\n```\n", "did not run until"),
        ("```sh background\ntrap 'exit 3' TERM; echo ready; sleep 60 & wait\n```\n", "ended with 3"),
    ],
)
def test_page_that_is_wrong_fails(page: str, reason: str, tmp_path: Path, processes: Processes) -> None:
    with pytest.raises(AssertionError, match=reason):
        printed_by(page, tmp_path, processes)


def test_files_that_no_other_block_names_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```toml\n# used.toml\na = 1\n```\n```json\n// lost.json\n{}\n```\n```sh\ncat used.toml\n```\n")
    assert [block.name for block in blocks_of(page)] == ["used.toml", "lost.json", None]
    assert list(unused_files(page)) == ["lost.json"]


def test_fence_that_is_indented_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("- a list\n\n  ```sh\n  false\n  ```\n")
    with pytest.raises(AssertionError, match="indented"):
        blocks_of(page)


def test_servers_take_a_free_port() -> None:
    assert with_ports("detent serve file:./data", [9, 8]) == "detent serve --port 9 file:./data"
    assert with_ports("detent serve --port 7410", [9, 8]) == "detent serve --port 9"
    assert with_ports("curl http://127.0.0.1:7410/healthz", [9, 8]) == "curl http://127.0.0.1:9/healthz"
    assert with_ports("detent serve --port 7411", [7411, 7410]) == "detent serve --port 7410"


def test_output_lines_are_looked_for_in_their_order() -> None:
    printed = "one\ntwo 17 ms\nthree\n"
    assert missing_lines("one\n...\nthree\n", printed) == []
    assert missing_lines("two ... ms", printed) == []
    assert missing_lines("three\none\n", printed) == ["one"]
    assert missing_lines("two", printed) == ["two"]


def test_block_is_output_if_it_follows_at_once_or_begins_with_what_was_printed() -> None:
    def block(text: str, gap: str) -> Block:
        return Block(1, "", "", text, gap)

    assert is_output(block("a stale line\n", gap=""), "one\n")
    assert is_output(block("one\nstale\n", gap="It prints:"), "one\n")
    assert not is_output(block("┌──┐\n", gap="A picture:"), "one\n")
    assert not is_output(block("one\n", gap="## Another section"), "one\n")
