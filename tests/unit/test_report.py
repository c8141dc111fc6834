"""What a task says of itself."""

from __future__ import annotations

import json

from detent.runtime.report import Report, Reporter, State, Trouble, state_of


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_report_says_state_progress_lag_and_trouble() -> None:
    clock = Clock()
    said = Reporter("worker", "mails", clock=clock)
    assert said.report() == Report("worker", "mails", State.STARTING, since=100)
    clock.now = 101
    said.say(State.RUNNING, holder="w-1")
    clock.now = 102
    said.say(State.RUNNING)
    said.count(handled=2, retried=1)
    said.count(handled=1)
    said.lags(7)
    assert said.report() == Report(
        "worker", "mails", State.RUNNING, {"handled": 3, "retried": 1}, 7, since=101, about={"holder": "w-1"}
    )
    clock.now = 103
    said.failed(ValueError("bad"))
    assert (said.report().state, said.report().trouble) == (State.FAILED, Trouble("ValueError: bad", 103))
    clock.now = 104
    said.restarted()
    assert (said.report().restarts, said.report().error, said.report().since) == (1, "ValueError: bad", 104)


def test_report_is_json_with_its_parts() -> None:
    shard = Report("shard", "0", State.FAILED, trouble=Trouble("away", 1.5))
    whole = Report("consumer", "words", state_of([shard.state]), lag=3, parts=(shard,))
    found = json.loads(json.dumps(whole.as_json()))
    assert (whole.title, found["state"], found["lag"], found["error"]) == ("consumer/words", "failed", 3, None)
    assert found["parts"][0]["error"] == {"text": "away", "at_ms": 1500}


def test_state_of_parts_is_what_needs_attention_first() -> None:
    assert state_of([State.STANDBY, State.RUNNING, State.FAILED]) is State.FAILED
    assert state_of([State.STANDBY, State.RUNNING]) is State.RUNNING
    assert state_of([State.STANDBY, State.STANDBY]) is State.STANDBY
    assert state_of([]) is State.STOPPED
