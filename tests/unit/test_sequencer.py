"""The sequencer for raw streams: ring, replay, checkpoints, pruning, and the hazards it is built against."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from detent.errors import Corrupt, Invalid
from detent.message import Checkpoint, Envelope, Outcome, ProducerCheckpoint, ProducerState, Sequencer

RINGS = [1, 2, 3, 5, 64]
STRIDE = 10
P, Q = 0x010000000001, 0x010000000002
FLAGS = {"o": 0, "c": 1, "a": 2}


def journal(text: str, name: str = "j") -> list[Envelope]:
    """A journal such as "160c 320a Q:170o": clock and flag of each message, of producer P unless it says Q."""
    envelopes = []
    for index, word in enumerate(text.split()):
        match = re.fullmatch(r"(?:(Q):)?(\d+)([oca])", word)
        assert match, word
        producer = Q if match[1] else P
        begin = index * STRIDE
        envelopes.append(Envelope(name, begin, begin + 7, producer, int(match[2]), FLAGS[match[3]], word))
    return envelopes


def between(raw: list[Envelope], begin: int, end: int) -> Iterator[Envelope]:
    return (envelope for envelope in raw if begin <= envelope.begin and envelope.end <= end)


def drain(sequencer: Sequencer, raw: list[Envelope]) -> list[str]:
    again = sequencer.replay_range()
    if again is not None:
        sequencer.start_replay(between(raw, *again[1:]))
    delivered = []
    while (envelope := sequencer.step()) is not None:
        delivered.append(envelope.message)
    return delivered


def run(sequencer: Sequencer, raw: list[Envelope], start: int = 0) -> str:
    delivered = []
    for envelope in raw:
        if envelope.begin >= start:
            sequencer.queue(envelope)
            delivered += drain(sequencer, raw)
    return " ".join(delivered)


@pytest.mark.parametrize("size", RINGS)
@pytest.mark.parametrize(
    ("raw", "delivered"),
    [
        ("160o 320o 160o 480o", "160o 320o 480o"),
        ("160c 320c 480c 640a", "160c 320c 480c 640a"),
        ("160c 320c 160c 320c 480c 640a 640a", "160c 320c 480c 640a"),
        ("160c 320c 480a 160c 320c 480a", "160c 320c 480a"),
        ("160a", "160a"),
        ("160c Q:170c 320c Q:180a 330a", "Q:170c Q:180a 160c 320c 330a"),
        ("160c 320o 480a", "320o 480a"),
        ("100a 160c 100a 170c 180a", "100a 170c 180a"),
        ("100a 160c 50a 100a 170c 180a", "100a 170c 180a"),
        ("0o 0c 160c 0a 320a", "0o 0c 0a 160c 320a"),
        ("160c 160a 170o", "160c 170o"),
    ],
)
def test_what_is_delivered(size: int, raw: str, delivered: str) -> None:
    assert run(Sequencer(size), journal(raw)) == delivered


@pytest.mark.parametrize("size", RINGS)
def test_a_partial_ack_rolls_back_what_lies_above_it(size: int) -> None:
    assert run(Sequencer(size), journal("160c 480c 320a 640a")) == "160c 320a 640a"


@pytest.mark.parametrize("size", RINGS)
def test_an_old_ack_of_a_live_producer_rolls_its_messages_back(size: int) -> None:
    assert run(Sequencer(size), journal("80c 90a 100c 90a 110a")) == "80c 90a 110a"


@pytest.mark.parametrize("size", RINGS)
def test_a_message_dropped_as_older_stays_dropped_in_a_replay(size: int) -> None:
    raw = journal("100c 300c 200c 250a")
    sequencer = Sequencer(size)
    assert [sequencer.queue(envelope) for envelope in raw[:3]][-1] is Outcome.CONTINUE_OLDER_IN_SPAN
    sequencer.queue(raw[3])
    assert drain(sequencer, raw) == ["100c", "250a"]


def test_the_outcomes() -> None:
    raw = journal("160c 320c 320c 480a 480a 10c 500o 500o 510c 480a 520c 530o")
    sequencer, outcomes = Sequencer(8), []
    for envelope in raw:
        outcomes.append(sequencer.queue(envelope).name)
        drain(sequencer, raw)
    assert outcomes == [
        "CONTINUE_BEGIN",
        "CONTINUE_EXTEND",
        "CONTINUE_OLDER_IN_SPAN",
        "ACK_COMMIT",
        "ACK_DUPLICATE",
        "CONTINUE_DUPLICATE",
        "OUTSIDE_COMMIT",
        "OUTSIDE_DUPLICATE",
        "CONTINUE_BEGIN",
        "ACK_DEEP_ROLLBACK",
        "CONTINUE_BEGIN",
        "OUTSIDE_OVER_SPAN",
    ]


def test_the_replay_covers_exactly_what_left_the_ring() -> None:
    raw = journal("100c Q:1c 200c 300c 400c 500a")
    sequencer = Sequencer(2)
    for envelope in raw:
        sequencer.queue(envelope)
    assert sequencer.replay_range() == ("j", 0, 30)
    assert drain(sequencer, raw) == ["100c", "200c", "300c", "400c", "500a"]
    assert sequencer.replay_range() is None


def test_no_replay_when_the_span_is_in_the_ring() -> None:
    sequencer = Sequencer(2)
    for envelope in journal("100c 200c 300a"):
        sequencer.queue(envelope)
    assert sequencer.replay_range() is None
    with pytest.raises(Invalid, match="nothing to replay"):
        sequencer.start_replay([])


def test_queue_before_everything_is_drained_is_refused() -> None:
    raw = journal("100o 200o")
    sequencer = Sequencer(2)
    sequencer.queue(raw[0])
    assert sequencer.is_delivering
    with pytest.raises(Invalid, match="call step"):
        sequencer.queue(raw[1])
    assert drain(sequencer, raw) == ["100o"]
    sequencer.queue(raw[1])


def test_step_without_the_replay_is_refused() -> None:
    raw = journal("100c 200c 300a")
    sequencer = Sequencer(1)
    for envelope in raw:
        sequencer.queue(envelope)
    with pytest.raises(Invalid, match="start_replay"):
        sequencer.step()
    assert drain(sequencer, raw) == ["100c", "200c", "300a"]


def test_step_with_nothing_queued_is_none() -> None:
    assert Sequencer(1).step() is None


def test_messages_out_of_journal_order_are_refused() -> None:
    raw = journal("100o 200o")
    sequencer = Sequencer(1)
    run(sequencer, raw)
    with pytest.raises(Invalid, match="not next"):
        sequencer.queue(raw[0])
    with pytest.raises(Invalid, match="not next"):
        sequencer.queue(Envelope("j", 50, 50, P, 300, 0))


def test_a_ring_has_a_size() -> None:
    with pytest.raises(Invalid):
        Sequencer(0)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"journal": "other"}, Invalid),
        ({"begin": -5}, Invalid),
        ({"end": 25}, Invalid),
        ({"begin": 1}, Corrupt),
        ({"producer": Q}, Corrupt),
    ],
)
def test_a_wrong_replay_is_refused_and_can_be_repeated(change: dict[str, int], error: type[Exception]) -> None:
    raw = journal("100c 200c 300a")
    sequencer = Sequencer(1)
    for envelope in raw:
        sequencer.queue(envelope)
    sequencer.start_replay([raw[0]._replace(**change)])
    with pytest.raises(error):
        sequencer.step()
    assert drain(sequencer, raw) == ["100c", "200c", "300a"]


def test_h9_a_hole_in_the_replay_is_corruption_not_silence() -> None:
    raw = journal("100c 200c 300c 400a")
    sequencer = Sequencer(1)
    for envelope in raw:
        sequencer.queue(envelope)
    sequencer.start_replay(raw[1:2])
    with pytest.raises(Corrupt, match="hole"):
        sequencer.step()


def test_a_replay_that_fails_halfway_goes_on_with_the_next() -> None:
    raw = journal("100c 200c 300c 400c 500a")
    sequencer = Sequencer(1)
    for envelope in raw:
        sequencer.queue(envelope)

    def failing() -> Iterator[Envelope]:
        yield from raw[:2]
        raise OSError("gone")

    sequencer.start_replay(failing())
    with pytest.raises(Invalid, match="nothing to replay"):
        sequencer.start_replay(raw[:3])
    assert [sequencer.step(), sequencer.step()] == raw[:2]
    with pytest.raises(OSError, match="gone"):
        sequencer.step()
    with pytest.raises(Invalid, match="start_replay"):
        sequencer.step()
    assert sequencer.replay_range() == ("j", 10, 30)
    assert drain(sequencer, raw) == ["300c", "400c", "500a"]


def test_h12_a_message_that_is_stamped_anew_changes_nothing() -> None:
    @dataclass
    class Body:
        clock: int

    raw = [
        Envelope("j", index, index + 1, P, clock, flags, Body(clock))
        for index, (clock, flags) in enumerate([(100, 1), (200, 1), (300, 2)])
    ]
    sequencer, seen = Sequencer(8), []
    for envelope in raw:
        sequencer.queue(envelope)
    while (envelope := sequencer.step()) is not None:
        seen.append(envelope.clock)
        envelope.message.clock = 10**9
    assert seen == [100, 200, 300]
    assert sequencer.checkpoint().producers == [ProducerCheckpoint("j", P, 300, -1, 300)]


def test_consumed_messages_are_let_go() -> None:
    class Body:
        pass

    sequencer = Sequencer(8)
    bodies = [Body() for _ in range(3)]
    watched = [weakref.ref(body) for body in bodies]
    for index, body in enumerate(bodies):
        sequencer.queue(Envelope("j", index, index + 1, P, 100 + index, 1, body))
    del body, bodies
    sequencer.queue(Envelope("j", 3, 4, P, 200, 2))
    sequencer.step()
    sequencer.step()
    gc.collect()
    assert [ref() is None for ref in watched] == [True, True, False]


def test_messages_rolled_back_are_let_go() -> None:
    class Body:
        pass

    sequencer = Sequencer(8)
    body = Body()
    watched = weakref.ref(body)
    sequencer.queue(Envelope("j", 0, 1, P, 100, 1, body))
    del body
    sequencer.queue(Envelope("j", 1, 2, P, 99, 2))
    gc.collect()
    assert watched() is None


def test_h16_acks_are_marked_so_that_they_can_be_hidden() -> None:
    raw = journal("160c 320a 480o 0a")
    sequencer, shown = Sequencer(4), []
    for envelope in raw:
        sequencer.queue(envelope)
        while (delivered := sequencer.step()) is not None:
            if not delivered.is_ack:
                shown.append(delivered.message)
    assert shown == ["160c", "480o", "0a"]


def test_h11_a_reader_that_starts_late_gets_the_tail_of_a_transaction() -> None:
    raw = journal("100c 200c 300a 400c 500a")
    assert run(Sequencer(8), raw, start=10) == "200c 300a 400c 500a"


def test_has_pending_is_about_spans_begun_since_the_last_checkpoint() -> None:
    raw = journal("100c 200c 300a 400c 0o 500c 450a")
    sequencer = Sequencer(8)
    assert not sequencer.has_pending
    sequencer.queue(raw[0])
    assert sequencer.has_pending
    sequencer.checkpoint()
    assert not sequencer.has_pending
    sequencer.queue(raw[1])
    assert not sequencer.has_pending
    sequencer.queue(raw[2])
    drain(sequencer, raw)
    sequencer.queue(raw[3])
    sequencer.queue(raw[4])
    drain(sequencer, raw)
    assert sequencer.has_pending
    sequencer.queue(raw[5])
    sequencer.queue(raw[6])
    drain(sequencer, raw)
    assert not sequencer.has_pending


def test_a_rollback_ends_pending() -> None:
    sequencer = Sequencer(8)
    for envelope in journal("100c 99a"):
        sequencer.queue(envelope)
    assert not sequencer.has_pending


def test_journals_are_independent() -> None:
    left, right = journal("100c 200a", "left"), journal("50c 60a", "right")
    sequencer = Sequencer(8)
    sequencer.queue(left[0])
    sequencer.queue(right[0])
    sequencer.queue(right[1])
    assert drain(sequencer, right) == ["50c", "60a"]
    sequencer.queue(left[1])
    assert drain(sequencer, left) == ["100c", "200a"]
    assert sequencer.checkpoint().offsets == {"left": 17, "right": 17}


@pytest.mark.parametrize("size", RINGS)
@pytest.mark.parametrize("consumed", range(5))
def test_a_checkpoint_in_the_middle_of_a_delivery(size: int, consumed: int) -> None:
    raw = journal("100c Q:5c 200c 300c 400a Q:6c Q:7a")
    sequencer = Sequencer(size)
    for envelope in raw[:5]:
        sequencer.queue(envelope)
    if (again := sequencer.replay_range()) is not None:
        sequencer.start_replay(between(raw, *again[1:]))
    expected = ["100c", "200c", "300c", "400a"]
    for message in expected[:consumed]:
        envelope = sequencer.step()
        assert envelope is not None
        assert envelope.message == message
    handed_out = max(consumed - 1, 0)
    checkpoint = sequencer.checkpoint()
    assert checkpoint.offsets == {"j": raw[3].end}
    entry = checkpoint.producers[0]
    assert entry.last_ack == [99, 100, 200, 300][handed_out]
    assert entry.begin == [0, 20, 30, 40][handed_out]

    resumed = Sequencer(size, checkpoint)
    rest = " ".join(expected[handed_out:])
    assert run(resumed, raw, start=checkpoint.offsets["j"]) == f"{rest} Q:5c Q:6c Q:7a"
    assert drain(sequencer, raw) == expected[consumed:]


def test_a_checkpoint_before_a_single_message_is_consumed_repeats_its_outcome() -> None:
    for text in ("100o", "100a", "50a 100o", "50a 80c 100o"):
        raw = journal(text)
        sequencer = Sequencer(2)
        run(sequencer, raw[:-1])
        outcome = sequencer.queue(raw[-1])
        sequencer.step()
        resumed = Sequencer(2, sequencer.checkpoint())
        assert resumed.queue(raw[-1]) is outcome
        assert drain(resumed, raw) == [raw[-1].message]


def test_a_checkpoint_without_the_newest_clock_still_delivers_once() -> None:
    raw = journal("100c 200c 100c 200c 300c 400a")
    checkpoint = Checkpoint({"j": raw[1].end}, [ProducerCheckpoint("j", P, 50, 0)], {})
    assert run(Sequencer(3, checkpoint), raw, start=20) == "100c 200c 300c 400a"


DAY = 24 * 3600 * 10**9
TICKS_PER_DAY = DAY // 100 << 4


def at(index: int, producer: int, clock: int, flags: int = 0) -> Envelope:
    return Envelope("j", index, index + 1, producer, clock, flags)


def consume(sequencer: Sequencer, *envelopes: Envelope) -> list[Outcome]:
    outcomes = []
    for envelope in envelopes:
        outcomes.append(sequencer.queue(envelope))
        drain(sequencer, list(envelopes))
    return outcomes


def test_idle_producers_are_forgotten_past_the_horizon() -> None:
    sequencer = Sequencer(8)
    consume(sequencer, at(0, P, 1000), at(1, Q, 1001 + TICKS_PER_DAY))
    assert len(sequencer.checkpoint().producers) == 2
    checkpoint = sequencer.checkpoint(DAY)
    assert [entry.producer for entry in checkpoint.producers] == [Q]
    assert checkpoint.floors == {"j": 1000}
    with pytest.raises(Invalid):
        sequencer.checkpoint(-1)


def test_the_horizon_is_not_reached_early_and_never_below_zero() -> None:
    sequencer = Sequencer(8)
    consume(sequencer, at(0, P, 1000), at(1, Q, 1000 + TICKS_PER_DAY))
    assert len(sequencer.checkpoint(DAY).producers) == 2
    small = Sequencer(8)
    consume(small, at(0, P, 1), at(1, Q, 500))
    assert len(small.checkpoint(DAY).producers) == 2


def test_h4_an_open_span_is_never_forgotten() -> None:
    sequencer = Sequencer(8)
    raw = [at(0, P, 1000, 1), at(1, Q, 2000 + TICKS_PER_DAY), at(2, P, 3000, 2)]
    consume(sequencer, *raw[:2])
    checkpoint = sequencer.checkpoint(DAY)
    assert len(checkpoint.producers) == 2
    for resumed in (sequencer, Sequencer(8, checkpoint)):
        assert resumed.queue(raw[2]) is Outcome.ACK_COMMIT
        if (again := resumed.replay_range()) is not None:
            resumed.start_replay(between(raw, *again[1:]))
        assert resumed.step() == raw[0]


def test_h5_a_duplicate_of_a_forgotten_producer_is_not_accepted_again() -> None:
    sequencer = Sequencer(8)
    consume(sequencer, at(0, P, 1000), at(1, Q, 2000 + TICKS_PER_DAY))
    checkpoint = sequencer.checkpoint(DAY)
    for resumed in (sequencer, Sequencer(8, checkpoint)):
        assert consume(resumed, at(2, P, 1000), at(3, P, 900, 1), at(4, P, 950, 2)) == [Outcome.BELOW_FLOOR] * 3
        assert resumed.checkpoint().offsets == {"j": 5}
        assert consume(resumed, at(5, P, 1001), at(6, P, 0)) == [Outcome.OUTSIDE_COMMIT] * 2


def test_a_producer_is_not_forgotten_in_the_middle_of_its_delivery() -> None:
    sequencer = Sequencer(8)
    consume(sequencer, at(0, P, 1000), at(1, Q, 2000 + TICKS_PER_DAY))
    sequencer.queue(at(2, P, 1500))
    sequencer.step()
    assert len(sequencer.checkpoint(DAY).producers) == 2
    assert sequencer.step() is None
    assert consume(sequencer, at(3, P, 1500)) == [Outcome.OUTSIDE_DUPLICATE]


def test_a_checkpoint_restores_what_it_says() -> None:
    checkpoint = Checkpoint({"j": 40, "k": 7}, [ProducerCheckpoint("j", P, 10, 20, 30)], {"k": 5})
    assert Sequencer(4, checkpoint).checkpoint() == checkpoint
    assert ProducerState(10, 30, 20).is_open
