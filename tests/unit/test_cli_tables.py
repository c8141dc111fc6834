"""Tables that commands print, with long names, large numbers and long reasons: no word is cut, on no terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import click
import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from detent.cli import _output
from detent.cli._common import table_options
from detent.cli._output import print_table
from detent.cli._views import Look, picture_of
from detent.cli.kinds import consumer, graph, pipeline
from detent.grid import Grid
from detent.runtime.report import Report, State

NAME = "orders/europe/incoming-from-partners"
UUID = "0190f5c2-7d3e-7c4a-9b1d-5e2f8a6c4b3d"
HOLDER = f"worker-17.example.com:23456:{UUID[:8]}"
REASON = "ValueError: the price of article 4711 is not known in any of the currencies that the shop takes [EUR, USD]"
URI = f"s3://bucket/orders/year=2026/month=01/day=31/part-00017-{UUID}.json.gz"
TIME = "2026-01-31T12:00:00.000Z"
MANY = "1234567890"

TABLES: dict[str, tuple[str, list[str]]] = {
    "queue stats": (
        "name,available,delayed,blocked,blocked delayed,in flight,failed,done,"
        "routed,acked,gave up,expired,purged,oldest",
        [NAME, *[MANY] * 12, "123d 23h"],
    ),
    "queue ls": ("name,available,delayed,in flight,failed,state", [NAME, *[MANY] * 4, "catching up"]),
    "queue readers": ("reader,done up to,assigned,since", [NAME, MANY, MANY, TIME]),
    "journal ls": ("name,messages,first,next,size,updated", [NAME, MANY, MANY, MANY, "1023.9 GiB", TIME]),
    "schedule ls": (
        "name,when,to,state,next,last",
        [NAME, "0,30 6-18 * * mon-fri (America/Argentina/Buenos_Aires)", f"queue {NAME}", "running", TIME, TIME],
    ),
    "ledger ls": ("name,batch,query,run,updated", [NAME, MANY, UUID, UUID, TIME]),
    "ledger pins": ("name,journals,offsets,created", [NAME, "17", f"{NAME}={MANY} a=1 b=2 and 14 more", TIME]),
    "graph show": (
        "processor,kind,inputs,outputs,errors,delivery,batch,parallel,more",
        ["enrich_with_prices", "stream", "orders + prices + customers", "totals, kept=archive", "failed",
         "exactly_once", "1000", "8", "types sale refund, retries 5, first after 250ms, starts at latest"],
    ),
    "graph status": (
        "processor,kind,status,lag,outputs,errors,nils,owed,holder,error",
        ["enrich_with_prices", "stream", "running, not declared", *[MANY] * 5, HOLDER, REASON],
    ),
    "graph status, times": (
        "journal,written by,messages,median,p99,max",
        [NAME, "enrich_with_prices", "1000", "1234 ms", "12.3 s", "1,234.5 s"],
    ),
    "graph trace": (
        "message,written,by,hop,in all,key",
        [f"│  │  └─ {NAME} {MANY}", TIME, "enrich_with_prices", "12.3 s", "1,234.5 s", UUID],
    ),
    "graph run": ("processor,outputs,errors,nils,lag", [NAME, *[MANY] * 4]),
    "bus run": ("app,handled,repeated,retried,given up,left,outbox", [NAME, *[MANY] * 6]),
    "bus outbox": ("position,id,to,bytes,error", [MANY, UUID, f"queue:{NAME}", MANY, REASON]),
    "bus show": (
        "messages,handler,parameters", ["OrderPlaced, OrderCancelled", "async invoice_order", "order, context"]
    ),
    "ingest files": ("file,state,size,failures,changed,reason", [URI, "quarantined", "1.2 GiB", "5", TIME, REASON]),
    "consumer ls": ("name,shards,held,members,failed,paused,lag", [NAME, "256", "256", "17", "3", "yes", MANY]),
    "consumer show": (
        "shard,journals,holder,status,processed,lag,error",
        ["255", f"{NAME} {NAME} and 9 more", HOLDER, "restoring", MANY, MANY, REASON],
    ),
    "consume": ("shard,journals,messages,processed,lag", ["255", f"{NAME} {NAME} and 9 more", MANY, MANY, MANY]),
    "token ls": (
        "name,id,grants,expires",
        ["billing", UUID, f"consume:queue:{NAME}* publish:queue:receipts admin:journal:*", "2026-01-31T12:00:00+00:00"],
    ),
    "run": (
        "stream,state,messages,batches,read up to,waiting,quarantined,failures",
        [NAME, "restarting", MANY, "123456", f"orders {MANY}, queue mails #17", MANY, MANY, "3"],
    ),
    "quarantine ls": ("name,waiting,put back", ["shop/paid.quarantine", MANY, MANY]),
    "quarantine show": (
        "offset,from,reason,body", [MANY, f"queue {NAME} {MANY}", REASON, '{"id": 17, "amount": "much"}']
    ),
    "demo": (
        "place,expected,found,lost,duplicated,strange,wrong,disordered",
        ["journal rejected", "9,500,000", "9,500,000", "0", "0", "0", "0", "0"],
    ),
}  # fmt: skip


def small(rows: Sequence[str]) -> list[str]:
    """Another row, in which there is hardly anything."""
    return ["q", *["-"] * (len(rows) - 1)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [80, 60, 200])
@pytest.mark.parametrize("name", TABLES)
def test_terminal_gets_every_word_whole(name: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    heads, row = TABLES[name][0].split(","), TABLES[name][1]
    shown = _printed(heads, [row, small(row)], columns, monkeypatch, is_divisible=name == "queue stats")
    words = shown.replace("│", " ").replace("┃", " ").split()
    # What stands below a row has its head with a colon.
    assert {word for text in heads for word in text.split()} <= {word.removesuffix(":") for word in words}
    assert {word for text in row for word in text.replace("│", " ").split()} <= set(words)
    assert "…" not in shown
    longest = max(len(word) for text in (*heads, *row) for word in text.split())
    assert max(map(cell_len, shown.splitlines())) <= max(columns, longest + 16)


def _printed(
    heads: list[str], rows: list[list[str]], columns: int, monkeypatch: pytest.MonkeyPatch, *, is_divisible: bool
) -> str:
    out = Terminal()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(_output.sys, "stdout", out)
    print_table(heads, rows, is_divisible=is_divisible)
    return Text.from_ansi(out.getvalue()).plain


@pytest.mark.parametrize("name", TABLES)
def test_pipe_gets_one_whole_line_for_each_row(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heads, row = TABLES[name][0].split(","), TABLES[name][1]
    monkeypatch.setenv("COLUMNS", "80")
    print_table(heads, [row, small(row)])
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == [word.upper() for text in heads for word in text.split()]
    assert first.split() == [word for text in row for word in text.split()]
    assert second.split() == small(row)


def holding(**values: Any) -> SimpleNamespace:
    return SimpleNamespace(**values)


def drawn(report: Report, columns: Any) -> Grid:
    table: Grid = picture_of(report, Look("task", list, dict, columns))
    return table


def consumer_table() -> Grid:
    shards = [
        holding(
            index=index, journals=[NAME, "b"], holder=HOLDER, status="restoring", error="", processed={NAME: int(MANY)}
        )
        for index in range(2)
    ]
    seen: Any = holding(
        info=holding(name=NAME, paused=True, shards=shards),
        lag={0: {NAME: int(MANY)}, 1: {NAME: int(MANY)}},
        gone={0: {}, 1: {}},
    )
    return drawn(consumer.report_of(seen, consumer.Rates()), consumer.COLUMNS)


def graph_table() -> Grid:
    counts = dict.fromkeys(graph.COUNTED, int(MANY))
    part = Report("processor", NAME, State.STANDBY, counts, int(MANY), None, int(MANY), about={"status": "standby"})
    return drawn(graph.whole_of(NAME, [part] * 2), graph.COLUMNS)


def pipeline_table() -> Grid:
    cells = {"state": "restarting", "in/s": "1,234,567", "batch": "123456", "took": "12.3 s", "quarantined": MANY}
    about = {**cells, "read up to": f"orders {MANY}, queue mails #17", "failures": "17"}
    part = Report("stream", NAME, State.FAILED, lag=int(MANY), about=about)
    return drawn(Report("pipeline", NAME, State.FAILED, parts=(part,)), pipeline.COLUMNS)


@pytest.mark.parametrize("width", [80, 60])
def test_live_table_gets_every_word_whole(width: int) -> None:
    number = f"{int(MANY):,}"
    for table, heads, words in (
        (consumer_table(), consumer.COLUMNS, {NAME, HOLDER, "restoring", number}),
        (graph_table(), graph.COLUMNS, {NAME, "standby", number}),
        (pipeline_table(), pipeline.COLUMNS, {NAME, "restarting", "1,234,567", MANY, "orders", "#17"}),
    ):
        console = Console(width=width, file=io.StringIO(), color_system=None)
        console.print(table)  # as a live table is drawn: what is too long would be cut here
        file: Any = console.file
        shown = file.getvalue()
        assert "…" not in shown
        assert words <= set(shown.replace("│", " ").split())
        assert {word for head in heads for word in head.head.split()} <= {
            word.removesuffix(":") for word in shown.split()
        }


def rendered(grid: Grid, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(grid, soft_wrap=True)
    file: Any = console.file
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_short_cells_stand_side_by_side_and_long_ones_below() -> None:
    grid = Grid(
        ["name", "lag", "error"], [["total", "1,234", f"{'x' * 40} {'y' * 20}"], ["show", "0", "-"]], right=["lag"]
    )
    assert rendered(grid, 50) == [
        "name     lag",
        "total  1,234",
        f"  error: {'x' * 40}",
        f"         {'y' * 20}",
        "show       0",
    ]


def test_long_name_stands_above_its_row() -> None:
    grid = Grid(["name", "messages", "lag"], [["orders/europe/incoming", "1000", "12"], ["q", "0", "0"]])
    assert rendered(grid, 30) == [
        "name",
        "  messages  lag",
        "orders/europe/incoming",
        "  1000      12",
        "q",
        "  0         0",
    ]


def test_long_text_is_wrapped_where_there_is_room() -> None:
    shown = rendered(Grid(["name", "error"], [["total", "no answer from the shop in time"]]), 33)
    assert shown == ["name   error", "total  no answer from the shop in", "       time"]


def test_many_numbers_become_tables_of_about_one_width() -> None:
    heads = ["name", *"abcdef"]
    grid = Grid(heads, [["q", *["1234567"] * 6]], is_divisible=True)
    assert rendered(grid, 45) == [
        "name  a        b        c",
        "q     1234567  1234567  1234567",
        "",
        "name  d        e        f",
        "q     1234567  1234567  1234567",
    ]


def test_brackets_in_a_cell_are_text() -> None:
    assert "[bold]x[/bold]" in "\n".join(rendered(Grid(["name"], [["[bold]x[/bold]"]], title="graph [g]"), 80))


def test_empty_table_has_its_heads() -> None:
    assert "name" in "\n".join(rendered(Grid(["name", "lag"], []), 80))


# -- columns that are left out ----------------------------------------------------------------------------------------


@click.command()
@table_options
def listed() -> None:
    """A command with a table that is too wide for 40 columns."""
    row = ["orders", "1" * 12, "2" * 12, "3" * 12]
    print_table(["name", "first", "second", "third"], [row], spare=["third", "first"])


def _listed(monkeypatch: pytest.MonkeyPatch, columns: int, *arguments: str) -> tuple[str, str]:
    out, said = Terminal(), io.StringIO()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(_output.sys, "stdout", out)
    monkeypatch.setattr(_output, "note", said.write)
    listed.main(list(arguments), standalone_mode=False)
    return Text.from_ansi(out.getvalue()).plain, said.getvalue()


def test_narrow_terminal_gets_fewer_columns_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, said = _listed(monkeypatch, 40)
    assert ("3" * 12 in shown, "1" * 12 in shown, "2" * 12 in shown) == (False, True, True)
    assert "third" in said
    shown, said = _listed(monkeypatch, 24)
    assert ("1" * 12 in shown, "2" * 12 in shown) == (False, True)
    assert "first, third" in said
    shown, said = _listed(monkeypatch, 120)
    assert ("3" * 12 in shown, said) == (True, "")


def test_wide_shows_all_columns_and_columns_those_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, said = _listed(monkeypatch, 40, "--wide")
    assert all(digit * 12 in shown for digit in "123")
    assert said == ""
    shown, said = _listed(monkeypatch, 40, "--columns", "third, NAME")
    assert shown.index("third") < shown.index("name")
    assert ("1" * 12 in shown, said) == (False, "")
    with pytest.raises(click.UsageError, match="no column 'colour'; it has name, first"):
        _listed(monkeypatch, 40, "--columns", "colour")
    with pytest.raises(click.BadParameter, match="commas"):
        _listed(monkeypatch, 40, "--columns", "name,,third")


def test_pipe_gets_all_columns(capsys: pytest.CaptureFixture[str]) -> None:
    listed.main([], standalone_mode=False)
    assert capsys.readouterr().out.splitlines()[0].split() == ["NAME", "FIRST", "SECOND", "THIRD"]
