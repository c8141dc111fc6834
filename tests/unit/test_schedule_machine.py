"""Schedules in their owner: each tick is published once, whatever fails, and whatever the clocks do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from detent.codec.schedule import DEFINITION, RUNS_KEPT, STATE
from detent.errors import Conflict, Exists, Fenced, Invalid, LimitExceeded, NotFound, Unavailable
from detent.kv.memory import MemoryWriter
from detent.schedule import ID_HEADER, SCHEDULE_HEADER, TICK_HEADER
from detent.schedule import firing as firing_module
from detent.schedule import machine as machine_module
from detent.schedule import operations as ops
from detent.schedule.handle import put_of
from detent.verify import verify
from scheduleworld import ScheduleWorld, ms

HOURLY = "0 * * * *"


@pytest.fixture
def world() -> ScheduleWorld:
    return ScheduleWorld()


def problems(world: ScheduleWorld) -> list[str]:
    return [str(finding) for finding in verify(world.writer)]


# -- ticks ----------------------------------------------------------------------------------------------------------


def test_publishes_each_tick_with_headers_that_name_it(world: ScheduleWorld) -> None:
    world.put(every="30s", body=b"beat", key=b"k", headers={"a": "b"})
    assert world.at("2026-01-01T00:00:29") == []
    assert world.at("2026-01-01T00:00:30") == ["2026-01-01T00:00:30"]
    assert world.fire() == []
    assert world.at("2026-01-01T00:01:01") == ["2026-01-01T00:01"]
    first, _ = world.committed("j")
    assert (first.body, first.key) == (b"beat", b"k")
    assert first.headers == {
        "a": "b",
        SCHEDULE_HEADER: "s",
        TICK_HEADER: "2026-01-01T00:00:30.000Z",
        ID_HEADER: "s@2026-01-01T00:00:30.000Z",
    }
    info = world.info()
    assert (info.published, info.skipped) == (2, 0)
    assert info.last == datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    assert info.published_at == datetime(2026, 1, 1, 0, 1, 1, tzinfo=UTC)
    assert info.next == datetime(2026, 1, 1, 0, 1, 30, tzinfo=UTC)
    assert problems(world) == []


def test_message_without_a_body_says_which_tick_it_is(world: ScheduleWorld) -> None:
    world.put("a/b", cron=HOURLY)
    world.at("2026-01-01T01:00")
    assert world.bodies("j") == [b'{"schedule":"a/b","tick":"2026-01-01T01:00:00.000Z"}']
    world.put("a/b", cron=HOURLY, body=b"")
    world.at("2026-01-01T02:00")
    assert world.bodies("j")[1:] == [b""]


def test_message_to_a_queue_has_an_id_that_the_queue_takes_once(world: ScheduleWorld) -> None:
    world.create("q")
    world.put(queue="q", cron=HOURLY, delay="10s", retention="1h")
    world.at("2026-01-01T01:00")
    assert world.about().available == 0
    assert world.claim().messages == []
    world.stand(10_000)
    world.session = world.engine.new_session()
    assert len(world.claim().messages) == 1
    again = world.publish(1, headers=[{"queue": "q"}], dedup_keys=["s@2026-01-01T01:00:00.000Z"], to="q")
    assert again == [], "the same id was taken twice"


def test_many_schedules_tick_in_few_commits(world: ScheduleWorld) -> None:
    for number in range(150):
        world.put(f"s{number}", cron=HOURLY)
    before = world.writer.commits
    assert len(world.at("2026-01-01T01:00")) == 150
    assert world.writer.commits - before == 1


def test_nothing_is_written_while_nothing_is_due(world: ScheduleWorld) -> None:
    world.put(cron=HOURLY)
    world.engine.tick()
    before = world.writer.commits
    for _ in range(50):
        world.stand(1_000)
        world.engine.tick()
        world.fire()
    assert world.writer.commits == before
    due_ms = world.engine.next_due_ms()
    assert due_ms == ms("2026-01-01T01:00")


def test_owner_is_told_of_what_is_due_when_that_is_durable(world: ScheduleWorld) -> None:
    told: list[int] = []
    world.schedules.timer = told.append
    world.put(every="5s")
    assert told == [ms("2026-01-01T00:00:05")]
    world.commit(ops.PauseSchedule("s"))
    assert told == [ms("2026-01-01T00:00:05")]
    world.commit(ops.AskSchedule("s"))
    assert told[1:] == [0]


# -- crashes and replaced owners ------------------------------------------------------------------------------------


def test_tick_is_published_once_though_its_owner_dies_before_or_after(world: ScheduleWorld) -> None:
    world.put(cron=HOURLY)
    world.stand(3_600_000)
    world.reopen()
    assert world.fire() == ["2026-01-01T01:00"]
    world.reopen()
    assert world.fire() == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_tick_is_published_once_though_its_commit_fails(world: ScheduleWorld, when: str) -> None:
    world.put(cron=HOURLY)
    world.stand(3_600_000)
    setattr(world.writer, f"fail_{when}", 1)
    with pytest.raises(Unavailable):
        world.fire()
    world.fire()
    assert world.ids() == ["s@2026-01-01T01:00:00.000Z"]
    assert world.info().published == 1


def test_replaced_owner_publishes_nothing(world: ScheduleWorld) -> None:
    world.put(cron=HOURLY)
    zombie = world.firing
    world.stand(3_600_000)
    world.reopen()
    with pytest.raises(Fenced):
        zombie.run()
    assert world.fire() == ["2026-01-01T01:00"]
    with pytest.raises(Fenced):
        zombie.run()
    assert world.ids() == ["s@2026-01-01T01:00:00.000Z"]


def test_owner_that_saw_an_older_state_is_refused(world: ScheduleWorld) -> None:
    world.put(cron=HOURLY)
    world.stand(3_600_000)
    (due,) = world.engine.act([ops.FindDue(10)])
    (found,) = due.schedules
    move = ops.MoveSchedule("s", found.definition.edition, found.state.step, found.state._replace(step=99))
    world.put(cron=HOURLY, body=b"changed")
    with pytest.raises(Conflict):
        world.engine.act([move])
    world.fire()
    assert world.bodies("j") == [b"changed"]


def test_command_that_is_asked_again_is_answered_and_not_repeated(world: ScheduleWorld) -> None:
    world.put(cron=HOURLY)
    request = world.request(ops.AskSchedule("s"))
    first = world.engine.commit(request)
    assert world.engine.commit(request) == first
    world.reopen()
    assert world.engine.commit(request) == first
    assert world.fire() == ["2026-01-01T00:00:00/by-hand"]


# -- what was missed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missed", "published", "skipped"),
    [
        ({"missed": "none"}, [], 5),
        ({"missed": "last"}, ["2026-01-01T05:00"], 4),
        ({"missed": "all"}, [f"2026-01-01T0{hour}:00" for hour in range(1, 6)], 0),
        ({"missed": "all", "missed_max": 2}, ["2026-01-01T04:00", "2026-01-01T05:00"], 3),
    ],
    ids=["none", "last", "all", "bounded"],
)
@pytest.mark.parametrize("times", [{"cron": HOURLY}, {"every": "1h"}], ids=["cron", "every"])
def test_missed_ticks_are_dropped_or_made_up_for(
    times: dict[str, Any], missed: dict[str, Any], published: list[str], skipped: int
) -> None:
    world = ScheduleWorld()
    world.put(**times, **missed)
    world.reopen()
    assert world.at("2026-01-01T05:30") == published
    assert world.info().skipped == skipped
    assert world.at("2026-01-01T06:00") == ["2026-01-01T06:00"]
    assert problems(world) == []


def test_tick_that_is_hardly_late_was_not_missed(world: ScheduleWorld) -> None:
    world.put(cron=HOURLY, missed="none")
    assert world.at("2026-01-01T01:00:50") == ["2026-01-01T01:00"]
    assert world.at("2026-01-01T02:01:01") == []


def test_many_missed_ticks_come_in_several_commits_and_each_once(world: ScheduleWorld) -> None:
    world.put(every="1m", missed="all", missed_max=1000)
    world.stand(1000 * 60_000)
    before = world.writer.commits
    found = world.fire()
    assert len(found) == len(set(found)) == 1000
    assert found == sorted(found)
    assert world.writer.commits - before == 10


def test_years_of_missed_ticks_cost_little(world: ScheduleWorld) -> None:
    world.put(every="1s", missed="last")
    world.put("c", cron="* * * * *", missed="all", missed_max=3)
    found = world.at("2028-06-01T00:00:30")
    assert found == ["2028-05-31T23:58", "2028-05-31T23:59", "2028-06-01T00:00", "2028-06-01T00:00:30"]
    assert world.info().skipped == (ms("2028-06-01T00:00:30") - ms("2026-01-01T00:00")) // 1000 - 1


# -- clocks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [{"cron": "*/10 * * * *"}, {"every": "10m"}], ids=["cron", "every"])
@pytest.mark.parametrize("to", ["2026-01-01T03:30", "2026-01-01T01:00", "2025-12-31T00:00"])
def test_clock_that_jumps_publishes_no_tick_twice(times: dict[str, Any], to: str) -> None:
    """Ahead or back, and set right again after an hour: the store's time follows neither at once."""
    world = ScheduleWorld()
    world.put(**times, missed="all")
    world.each(60_000, "2026-01-01T02:00")
    passed_ms = ms("2026-01-01T02:00")
    world.jump(to)
    for _ in range(90):
        world.stand(60_000)
        passed_ms += 60_000
        world.engine.tick()
        world.fire()
    world.wall_ms = passed_ms
    for _ in range(240):
        world.stand(60_000)
        world.engine.tick()
        world.fire()
    ids = world.ids()
    assert len(ids) == len(set(ids)), "a tick was published twice"
    assert problems(world) == []


@pytest.mark.parametrize("missed", ["none", "last", "all"])
def test_ticks_of_a_wrong_time_are_not_published_again_when_it_comes(missed: str) -> None:
    """The machine believed for half an hour that it was in February."""
    world = ScheduleWorld()
    world.put(cron="0 6 * * *", missed=missed)
    world.at("2026-01-01T06:00")
    world.jump("2026-02-01T12:00")
    world.each(60_000, "2026-02-01T12:30")
    ahead = world.ids()
    world.jump("2026-01-01T06:45")
    world.each(60_000, "2026-01-01T07:00")
    found = world.each(3_600_000, "2026-02-03T00:00")
    assert len({*ahead, *world.ids()}) == len(world.ids()), "a tick was published twice"
    days = {f"2026-01-{day:02}T06:00" for day in range(2, 32)} | {"2026-02-01T06:00", "2026-02-02T06:00"}
    done = {one.partition("@")[2][:16] for one in ahead}
    assert set(found) == days - done, "what was not published in the wrong time is, in the right one"


def test_interval_goes_on_at_its_pace_when_the_clock_is_set_back(world: ScheduleWorld) -> None:
    world.put(every="2m")
    world.each(60_000, "2026-01-01T03:00")
    world.jump("2026-01-01T01:00")
    world.each(60_000, "2026-01-01T01:15")
    assert world.engine.time.difference_ms == 0, "the store's time was not set back"
    found = world.each(60_000, "2026-01-01T01:35")
    assert len(found) == 10
    assert len(set(world.ids())) == len(world.ids())


def test_runs_that_are_remembered_are_few(world: ScheduleWorld) -> None:
    world.put(cron="* * * * *")
    for hour in range(24):
        world.at(f"2026-01-01T{hour:02}:30")
    with world.writer.view() as view:
        ((_, value),) = view.scan(*STATE.range())
    state = machine_module.ScheduleState.decode(value)
    assert len(state.runs) == RUNS_KEPT
    assert state.runs[0][0] == ms("2026-01-01T00:30")
    assert state.runs[-1] == (ms("2026-01-01T23:30"), ms("2026-01-01T23:30"))


# -- changing -------------------------------------------------------------------------------------------------------


def test_schedule_that_says_the_same_stays_as_it_is(world: ScheduleWorld) -> None:
    assert world.put(every="1m") == ops.SchedulePut(True, True)
    world.stand(30_000)
    before = world.writer.commits
    assert world.put(every=60) == ops.SchedulePut(False, False)
    assert world.writer.commits == before
    assert world.at("2026-01-01T00:01") == ["2026-01-01T00:01"]


def test_other_message_leaves_the_next_tick_where_it_is(world: ScheduleWorld) -> None:
    world.put(every="1m")
    world.stand(30_000)
    world.put(every="1m", body=b"other")
    assert world.at("2026-01-01T00:01") == ["2026-01-01T00:01"]
    assert world.bodies("j") == [b"other"]


def test_other_times_begin_anew(world: ScheduleWorld) -> None:
    world.put(every="1m")
    world.stand(30_000)
    world.put(every="2m")
    assert world.each(10_000, "2026-01-01T00:03") == ["2026-01-01T00:02:30"]
    world.put(cron=HOURLY)
    assert world.at("2026-01-01T01:00") == ["2026-01-01T01:00"]


def test_interval_begins_where_it_is_told(world: ScheduleWorld) -> None:
    world.put(every="1h", start=datetime(2026, 1, 1, 0, 10, tzinfo=UTC))
    world.put("past", every="1h", start=datetime(2025, 6, 1, 0, 20, tzinfo=UTC))
    assert world.each(60_000, "2026-01-01T01:30") == [
        "2026-01-01T00:10", "2026-01-01T00:20", "2026-01-01T01:10", "2026-01-01T01:20",
    ]  # fmt: skip


def test_create_and_change_say_what_they_find(world: ScheduleWorld) -> None:
    with pytest.raises(NotFound):
        world.commit(put_of("s", {"every": "1m", "journal": "j"}, only="change"))
    world.put(every="1m")
    with pytest.raises(Exists):
        world.commit(put_of("s", {"every": "2m", "journal": "j"}, only="create"))
    edition = world.info().edition
    world.put(every="2m")
    with pytest.raises(Conflict):
        world.commit(put_of("s", {"every": "3m", "journal": "j"}, only="change", edition=edition))


def test_schedule_that_rests_misses_nothing(world: ScheduleWorld) -> None:
    world.put(cron=HOURLY, missed="all")
    world.commit(ops.PauseSchedule("s"))
    assert world.info().next is None
    assert world.at("2026-01-01T05:30") == []
    world.commit(ops.PauseSchedule("s", False))
    assert world.fire() == []
    assert world.at("2026-01-01T06:00") == ["2026-01-01T06:00"]
    assert world.info().skipped == 0


def test_message_is_asked_for_by_hand_also_while_it_rests(world: ScheduleWorld) -> None:
    world.put(cron=HOURLY, paused=True)
    asked = [world.commit(ops.AskSchedule("s"))[0].id for _ in range(2)]
    assert world.info().waiting == 2
    world.fire()
    assert world.ids() == asked == ["s@2026-01-01T00:00:00.000Z/by-hand", "s@2026-01-01T00:00:00.001Z/by-hand"]
    assert (world.info().waiting, world.info().published, world.info().last) == (0, 2, None)


def test_deleted_schedule_ticks_no_more(world: ScheduleWorld) -> None:
    world.put(cron=HOURLY)
    world.commit(ops.DeleteSchedule("s"))
    assert world.at("2026-01-01T01:00") == []
    with world.writer.view() as view:
        assert [*view.scan(*DEFINITION.range()), *view.scan(*STATE.range())] == []
    for operation in (ops.DeleteSchedule("s"), ops.AskSchedule("s"), ops.PauseSchedule("s")):
        with pytest.raises(NotFound):
            world.commit(operation)


def test_refused_transaction_leaves_no_schedule(world: ScheduleWorld) -> None:
    with pytest.raises(NotFound):
        world.commit(put_of("s", {"every": "1m", "journal": "j"}), ops.DeleteSchedule("other"))
    with pytest.raises(NotFound):
        world.info()
    assert world.at("2026-01-01T01:00") == []


# -- trouble --------------------------------------------------------------------------------------------------------


def test_queue_has_to_be_there(world: ScheduleWorld) -> None:
    with pytest.raises(NotFound, match="no queue 'q'"):
        world.put(queue="q", cron=HOURLY)


def test_what_cannot_be_published_is_shown_tried_again_and_holds_up_no_other(world: ScheduleWorld) -> None:
    world.create("q")
    world.put("broken", queue="q", cron=HOURLY)
    for name in ("a", "c", "z"):
        world.put(name, cron=HOURLY)
    world.commit(machine_delete("q"))
    assert len(world.at("2026-01-01T01:00")) == 3
    assert "no queue 'q'" in world.info("broken").problem
    looks = 0
    for _ in range(120):
        world.stand(1_000)
        looks += world.schedules.is_due(world.engine.now_ms())
        world.fire()
    assert 3 <= looks <= 8, "it was tried again less and less often"
    world.create("q")
    world.stand(61_000)
    world.fire()
    assert world.info("broken").problem == ""
    assert world.about().available == 1


def test_schedule_whose_ticks_cannot_be_worked_out_holds_up_no_other(
    world: ScheduleWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "broken", "z"):
        world.put(name, cron=HOURLY)
    plan = firing_module.plan

    def broken(definition: Any, state: Any, now_ms: int) -> Any:
        if state.next_ms == ms("2026-01-01T01:00") and definition.body == b"broken":
            raise AssertionError("a fault in a library")
        return plan(definition, state, now_ms)

    world.put("broken", cron=HOURLY, body=b"broken")
    monkeypatch.setattr(firing_module, "plan", broken)
    assert len(world.at("2026-01-01T01:00")) == 2
    assert "a fault in a library" in world.info("broken").problem
    assert "cannot be worked out" in caplog.text


def machine_delete(queue: str) -> Any:
    from detent.queue.operations import DeleteQueue

    return DeleteQueue(queue)


def test_changed_schedule_is_tried_at_once(world: ScheduleWorld) -> None:
    world.create("q")
    world.put(queue="q", cron=HOURLY)
    world.commit(machine_delete("q"))
    world.at("2026-01-01T01:00")
    world.put(cron=HOURLY)
    assert world.fire() == ["2026-01-01T01:00"]


# -- limits and hostile input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"cron": HOURLY, "every": "1m"},
        {"every": "999ms"},
        {"every": timedelta(days=4000)},
        {"every": "1m", "tz": "Europe/Paris"},
        {"cron": HOURLY, "start": datetime(2026, 1, 1, tzinfo=UTC)},
        {"every": "1m", "start": datetime(2026, 1, 1)},
        {"every": "1m", "start": datetime(1969, 1, 1, tzinfo=UTC)},
        {"every": "1m", "start": datetime(9990, 1, 1, tzinfo=UTC)},
        {"every": "1m", "queue": "q", "journal": "j"},
        {"every": "1m", "queue": "q", "key": b"k"},
        {"every": "1m", "journal": "j", "delay": "1s"},
        {"every": "1m", "journal": "a b"},
        {"every": "1m", "headers": {"detent-id": "x"}},
        {"every": "1m", "headers": {"queue": "other"}},
        {"every": "1m", "headers": {"a": 1}},
        {"every": "1m", "headers": "a"},
        {"every": "1m", "body": "text"},
        {"every": "1m", "missed": "some"},
        {"every": "1m", "missed": "all", "missed_max": 0},
        {"every": "1m", "missed": "last", "missed_max": 5},
        {"every": "1m", "paused": 1},
        {"every": "1m", "priority": 5},
    ],
    ids=repr,
)
def test_refuses_what_is_not_a_schedule(settings: dict[str, Any]) -> None:
    if not {"queue", "journal"} & settings.keys():
        settings = {**settings, "journal": "j"}
    with pytest.raises(Invalid):
        put_of("s", settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "a b", "x" * 151, "../x", "a\nb"])
def test_refuses_what_is_not_a_name(name: str) -> None:
    with pytest.raises(Invalid):
        put_of(name, {"every": "1m", "journal": "j"})


def test_refuses_large_bodies() -> None:
    with pytest.raises(LimitExceeded):
        put_of("s", {"every": "1m", "journal": "j", "body": bytes(ops.BODY_BYTES_MAX + 1)})


def test_refuses_more_schedules_than_fit(world: ScheduleWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "SCHEDULES_MAX", 2)
    monkeypatch.setattr(ops, "SCHEDULES_BYTES_MAX", 10_000)
    monkeypatch.setattr(ops, "ASKED_MAX", 1)
    world.put("a", every="1m")
    with pytest.raises(LimitExceeded, match="bytes together"):
        world.put("b", every="1m", body=bytes(9_000))
    world.put("b", every="1m")
    with pytest.raises(LimitExceeded, match="schedules already"):
        world.put("c", every="1m")
    world.commit(ops.AskSchedule("a"))
    with pytest.raises(LimitExceeded, match="not published yet"):
        world.commit(ops.AskSchedule("a"))
    world.commit(ops.DeleteSchedule("b"))
    world.put("c", every="1m")


def test_lists_by_name_and_in_pages(world: ScheduleWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b/2", "a", "b/1", "c"):
        world.put(name, every="1m")
    page = world.commit(ops.DescribeSchedules("b/", limit=1))[0]
    assert ([one.name for one in page.schedules], page.more) == (["b/1"], True)
    page = world.commit(ops.DescribeSchedules("b/", after="b/1", limit=1))[0]
    assert ([one.name for one in page.schedules], page.more) == (["b/2"], False)
    monkeypatch.setattr(ops, "PAGE_BYTES", 1)
    assert world.commit(ops.DescribeSchedules())[0].more


def test_doctor_names_schedules_that_have_been_due_for_long(world: ScheduleWorld) -> None:
    from detent.cli.doctor import _overdue

    world.put("rests", cron=HOURLY, paused=True)
    world.put("later", every="1h", start=datetime(9000, 1, 1, tzinfo=UTC))
    assert [*_overdue(world.writer)] == []
    for name in ("a", "b"):
        world.put(name, cron=HOURLY)
    (found,) = _overdue(world.writer)  # this world is of the past
    assert found.state == "warning"
    assert found.what == "2 schedules should have published by now: the first is 'a'"


# -- verify ---------------------------------------------------------------------------------------------------------


def test_verify_finds_what_does_not_go_together(world: ScheduleWorld) -> None:
    world.put("a", every="1m")
    world.put("b", every="1m")
    writer = MemoryWriter(world.space)
    batch = machine_module.Batch()
    batch.delete(STATE.key(b"a"))
    batch.put(STATE.key(b"c"), machine_module.NEW_STATE.encode())
    with writer.view() as view:
        value = view.get(DEFINITION.key(b"b"))
        assert value is not None
    batch.put(DEFINITION.key(b"b"), value.replace(b"\x60\xea", b"\x01\x00"))
    writer.commit(batch)
    found = "\n".join(str(finding) for finding in verify(writer))
    assert "the schedule 'a' has no state" in found
    assert "the state of a schedule 'c' that there is not" in found
    assert "an interval is 1 s" in found
