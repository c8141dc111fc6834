"""Graphs as pictures: a row for each processor, a lane for each journal, and the same for Mermaid."""

from __future__ import annotations

from typing import Any

import pytest

from detent.errors import Invalid
from detent.processor import Graph, Polled, sink, source, stream
from detent.processor.drawing import LEGEND, rows_of


def one(first: Any) -> Any:
    return first


def two(first: Any, second: Any) -> Any:
    return first, second


def poll(cursor: Any) -> Polled:
    return Polled([], cursor)


def shop() -> Graph:
    return Graph(
        "shop",
        errors="failed",
        processors=[
            source("orders"),
            source("prices"),
            stream("valid", one, input="orders", output="checked"),
            stream("total", two, join=["checked", "prices"], output="totals"),
            sink("show", one, input="totals"),
        ],
    )


def large() -> Graph:
    """Twelve, with all that there is: joins, forks, journals of errors, another store."""
    return Graph(
        "shop",
        errors="failed",
        stores={"archive": "memory:"},
        processors=[
            *shop().processors[:4],
            stream("split", one, input="totals", outputs={"big": "orders/big", "small": "orders/small"}),
            sink("tell", one, input="orders/big", errors=False),
            stream("archive", one, input="orders/small", output="kept@archive"),
            stream("report", one, any_of=["orders/big", "kept@archive"], output="report"),
            source("clock", poll, output="ticks"),
            stream("board", one, any_of=["ticks", "report"], output="board", errors="board-failed"),
            sink("screen", one, input="board"),
            sink("mourn", one, input="failed", errors=False),
        ],
    )


def test_a_small_graph() -> None:
    assert shop().draw().splitlines() == [
        "orders  ●          source",
        "prices  │ ●        source",
        "valid   ○─┼─●┄┄┄✗  orders → checked, ✗ failed",
        "total     ○─○─●┄✗  checked + prices → totals, ✗ failed",
        "show          ○┄✗  totals → (outside), ✗ failed",
        "",
        LEGEND,
    ]


def test_twelve_processors() -> None:
    assert large().draw().splitlines() == [
        "orders   ●                        source",
        "prices   │ ●                      source",
        "valid    ○─┼─●┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄✗    orders → checked, ✗ failed",
        "total      ○─○─●┄┄┄┄┄┄┄┄┄┄┄┄┄✗    checked + prices → totals, ✗ failed",
        "split          ○─●─●┄┄┄┄┄┄┄┄┄✗    totals → orders/big, orders/small, ✗ failed",
        "tell             ○ │         │    orders/big → (outside)",
        "archive          │ ○─●┄┄┄┄┄┄┄✗    orders/small → kept@archive, ✗ failed",
        "report           ○───○─●┄┄┄┄┄✗    orders/big | kept@archive → report, ✗ failed",
        "clock                  │ ●   │    source → ticks",
        "board                  ○─○─●┄┼┄✗  ticks | report → board, ✗ board-failed",
        "screen                     ○┄✗    board → (outside), ✗ failed",
        "mourn                        ○    failed → (outside)",
        "",
        LEGEND,
    ]


def test_processors_stay_in_the_order_of_the_file() -> None:
    names = [one.name for one in large().processors]
    assert [one.name for one in rows_of(large())] == names
    turned = Graph("turned", errors="failed", processors=reversed(shop().processors))
    assert [one.name for one in rows_of(turned)] == ["prices", "orders", "valid", "total", "show"]


def test_no_errors_and_several_writers() -> None:
    graph = Graph("both", processors=[source("in"), source("feed", poll, output="all")])
    graph.add(stream("copy", one, input="in", output="all"))
    graph.add(sink("end", one, input="all"))
    assert graph.draw().splitlines()[:4] == [
        "in    ●    source",
        "feed  │ ●  source → all",
        "copy  ○─●  in → all",
        "end     ○  all → (outside)",
    ]


def test_mermaid() -> None:
    graph = Graph("end", stores={"class": "memory:"}, processors=[source("graph"), source("style", poll, output="x+y")])
    graph.add(stream("subgraph", two, join=["graph", "x+y"], output="call@class", errors="a:b"))
    graph.add(sink("end", one, input="call@class"))
    assert graph.draw("mermaid").splitlines() == [
        "flowchart LR",
        '    j0[("graph")]',
        '    j1[("x+y")]',
        '    j3[("a:b")]',
        '    subgraph s1["class"]',
        '        j2[("call")]',
        "    end",
        '    p1(["style"])',
        '    p2["subgraph"]',
        '    p3[["end"]]',
        "    p1 --> j1",
        "    j0 --> p2",
        "    j1 --> p2",
        "    p2 --> j2",
        "    p2 -. errors .-> j3",
        "    j2 --> p3",
    ]


def test_what_cannot_run_is_not_drawn() -> None:
    with pytest.raises(Invalid, match="has no processors"):
        Graph("empty").draw()
    with pytest.raises(Invalid, match="reads 'ordres', which is neither a source"):
        Graph("slip", processors=[source("orders"), sink("s", one, input="ordres")]).draw("mermaid")
