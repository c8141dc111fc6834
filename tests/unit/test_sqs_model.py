"""The endpoint against the service's own model, member by member, and docs/sqs.md against both."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from botocore.loaders import Loader

from detent.server.sqs import shapes
from detent.server.sqs.receiving import SYSTEM_NAMES
from detent.server.sqs.settings import NAMES
from detent.server.sqs.shapes import ACTIONS, Field

MODEL: dict[str, Any] = Loader().load_service_model("sqs", "service-2")
PAGE = (Path(__file__).parents[2] / "docs" / "sqs.md").read_text()
KINDS = {"string": shapes.TEXT, "integer": shapes.NUMBER, "list": shapes.TEXTS, "map": shapes.MAP}


def check_members(members: dict[str, Any], fields: dict[str, Field]) -> None:
    """A structure of the model has the members that the endpoint reads, each of its kind."""
    assert members.keys() == fields.keys()
    for name, member in members.items():
        shape = MODEL["shapes"][member["shape"]]
        item = MODEL["shapes"][(shape.get("member") or shape.get("value") or member)["shape"]]
        if item["type"] != "structure" or shape is item:
            assert fields[name].kind == KINDS[shape["type"]], name
        elif shape["type"] == "map":
            assert fields[name].kind == shapes.ATTRIBUTES, name
        else:
            assert fields[name].kind == shapes.ENTRIES, name
            check_members(item["members"], fields[name].fields)


def test_actions_are_those_of_the_model() -> None:
    assert ACTIONS.keys() == MODEL["operations"].keys()


@pytest.mark.parametrize("action", MODEL["operations"])
def test_action_takes_what_the_model_says(action: str) -> None:
    operation = MODEL["operations"][action]
    asked = MODEL["shapes"][operation["input"]["shape"]]
    check_members(asked["members"], ACTIONS[action].fields)
    assert ACTIONS[action].answers == ("output" in operation)
    # What a refused action lacks, and entries that are not there, have errors of their own.
    lacking = set(asked.get("required", ())) - set(ACTIONS[action].required)
    assert lacking <= {"Label", "AWSAccountIds", "Actions", "Entries", "Tags", "TagKeys"}


def test_attributes_are_those_of_the_model() -> None:
    known = set(MODEL["shapes"]["QueueAttributeName"]["enum"])
    assert {name for name in NAMES if not name.startswith("Detent")} == known
    assert set(MODEL["shapes"]["MessageSystemAttributeName"]["enum"]) == SYSTEM_NAMES


def rows_of(heading: str) -> dict[str, str]:
    """The rows of a table in the documentation: what each name is called."""
    section = PAGE.partition(f"### {heading}\n")[2].partition("\n#")[0]
    rows = re.findall(r"^\| (`[^|]+`) \| (\w+)", section, re.MULTILINE)
    return {name: verdict for names, verdict in rows for name in re.findall(r"`([^`]+)`", names)}


@pytest.mark.parametrize(
    ("heading", "names"),
    [
        ("Actions", MODEL["operations"]),
        ("Queue attributes", [name for name in MODEL["shapes"]["QueueAttributeName"]["enum"] if name != "All"]),
        ("What comes with a message", [name for name in SYSTEM_NAMES if name != "All"]),
    ],
)
def test_page_says_of_each_name_how_it_compares(heading: str, names: Any) -> None:
    rows = rows_of(heading)
    assert rows.keys() == set(names)
    assert set(rows.values()) <= {"same", "different", "refused"}
