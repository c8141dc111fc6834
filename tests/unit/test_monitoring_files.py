"""The dashboard and the alert rules in deploy/: they name metrics that exist, and the rules do what they say."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import promql_parser
import pytest
import yaml

from detent.cli import cli
from shownmetrics import shown_metrics

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
DASHBOARD = DEPLOY / "grafana" / "detent.json"

OWN = {"up": frozenset({"job"}), "process_resident_memory_bytes": frozenset[str]()}
"""What Prometheus and its client add to a server's metrics."""

EVERYWHERE = frozenset({"instance", "job", "le"})


def known() -> dict[str, frozenset[str]]:
    """The labels of every series that can be asked for."""
    found = dict(OWN)
    for name, (kind, labels) in shown_metrics().items():
        for suffix in ("_bucket", "_sum", "_count") if kind == "histogram" else ("",):
            found[name + suffix] = labels
    return found


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def questions() -> list[tuple[str, str]]:
    """Every expression of the dashboard, with the panel's title; what Grafana fills in is filled in."""
    found = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*")
            found.append((panel["title"], expression.replace("$queue", ".*")))
    return found


def selectors(part: Any) -> Iterator[Any]:
    """All vector selectors of an expression."""
    if isinstance(part, promql_parser.VectorSelector):
        yield part
    for name in ("lhs", "rhs", "expr", "param", "vector_selector"):
        below = getattr(part, name, None)
        if below is not None and not isinstance(below, str):
            yield from selectors(below)
    for argument in getattr(part, "args", None) or ():
        yield from selectors(argument)


def check(expression: str) -> None:
    series = known()
    found = list(selectors(promql_parser.parse(expression)))
    assert found
    for selector in found:
        assert selector.name in series, f"{selector.name} is not a metric"
        labels = series[selector.name] | EVERYWHERE
        assert {matcher.name for matcher in selector.matchers.matchers} <= labels


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_rule_names_metrics_and_labels_that_exist_and_says_what_to_do(rule: dict[str, Any]) -> None:
    check(rule["expr"])
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert set(rule["annotations"]) == {"summary", "action"}
    labels = {label for selector in selectors(promql_parser.parse(rule["expr"])) for label in known()[selector.name]}
    shown = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    assert shown <= labels | {"instance"}


@pytest.mark.parametrize(("title", "expression"), questions(), ids=lambda text: text[:40])
def test_panel_names_metrics_and_labels_that_exist(title: str, expression: str) -> None:
    check(expression)


def test_an_unknown_metric_or_label_is_noticed() -> None:
    for wrong in ("rate(detent_nothing_total[1m])", 'detent_queue_messages{colour="red"} > 0', "sum(up) - detent_x"):
        with pytest.raises(AssertionError):
            check(wrong)


def test_dashboard_has_ids_and_places_of_its_own() -> None:
    board = json.loads(DASHBOARD.read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
        assert panel["type"] == "row" or panel["description"]


def test_docs_name_each_rule_beside_a_metric_that_it_looks_at() -> None:
    named = {
        alert: metric
        for metric, row in re.findall(r"^\| `(\w+)` (.*)$", PAGE.read_text(), re.MULTILINE)
        for alert in re.findall(r"\((Detent\w+)\)", row)
    }
    expressions = {rule["alert"]: rule["expr"] for rule in rules()}
    assert set(expressions) == {*named, "DetentServerDown"}  # which looks at what Prometheus itself knows
    for alert, metric in named.items():
        assert metric in expressions[alert]


def test_commands_that_the_rules_name_exist() -> None:
    context = click.Context(cli)
    for rule in rules():
        for command in re.findall(r"`detent ([a-z ]+)`", rule["annotations"]["action"]):
            group: Any = cli
            for word in command.split():
                group = group.get_command(context, word)
                assert group is not None, command


PROMTOOL = shutil.which("promtool")


@pytest.mark.skipif(PROMTOOL is None, reason="promtool (Debian: prometheus) is not installed")
def test_promtool_takes_the_rules_and_their_own_tests_pass() -> None:
    for arguments in (
        ["check", "rules", "--lint=all", "--lint-fatal", "alerts.yaml"],
        ["test", "rules", "alerts_test.yaml"],
    ):
        done = subprocess.run(
            [str(PROMTOOL), *arguments], cwd=ALERTS.parent, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_rules_have_tests_of_the_ones_that_are_easy_to_get_wrong() -> None:
    tested = yaml.safe_load((ALERTS.parent / "alerts_test.yaml").read_text())["tests"]
    alerts = {case["alertname"] for one in tested for case in one["alert_rule_test"]}
    assert alerts <= {rule["alert"] for rule in rules()}
    assert {"DetentQueueStands", "DetentStoreFenced", "DetentCommitsSlow"} <= alerts
