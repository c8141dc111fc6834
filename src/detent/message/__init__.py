"""Message ids, clocks, partition mappings and sequencing. Pure: no I/O, no randomness of its own, and no wall clock
but where `Sequencer.checkpoint` is given a horizon and no time.

From a message's id to the decision whether it counts:

    uuids.py       message ids: UUIDs that carry producer, clock and flags (alone, pending, acknowledgement)
    clock.py       a producer's clock: strictly monotonic, close to wall time
    mapping.py     which partition journal a message belongs to
    sequence.py    the rule, one function: what a message does, given what its producer did before; and which
                   producers a journal forgets
    vectorised.py  the same rule for a block of columns; this is what a journal's owner runs
    grouping.py    the rows of a block by producer
    block.py       the result for a block, and the same rule as a plain loop
    sequencer.py   the same rule for raw streams, which have no index: committed messages, once each
    ring.py        its memory of pending messages
"""

from detent.message.block import Carried, SequencedBlock, sequence_block_scalar
from detent.message.clock import TICK, Clock, as_unix_ns, clock_of, clock_of_ns
from detent.message.mapping import MappingFunction, fnv1a32, modulo, random_choice, rendezvous
from detent.message.ring import Envelope
from detent.message.sequence import (
    CLOCK_AHEAD_NS,
    NO_SPAN,
    Outcome,
    ProducerState,
    decide,
    first_sight,
    idle_below,
    is_forgotten,
    latest_clock,
)
from detent.message.sequencer import HORIZON_NS, RING_SIZE, Checkpoint, ProducerCheckpoint, Sequencer
from detent.message.uuids import (
    ACK_TXN,
    CONTINUE_TXN,
    FLAGS_MAX,
    OUTSIDE_TXN,
    ProducerId,
    build_uuid,
    is_sequenced,
    kind_of,
    new_producer_id,
    parse_uuid,
)
from detent.message.vectorised import sequence_block

__all__ = [
    "ACK_TXN",
    "CLOCK_AHEAD_NS",
    "CONTINUE_TXN",
    "FLAGS_MAX",
    "HORIZON_NS",
    "NO_SPAN",
    "OUTSIDE_TXN",
    "RING_SIZE",
    "TICK",
    "Carried",
    "Checkpoint",
    "Clock",
    "Envelope",
    "MappingFunction",
    "Outcome",
    "ProducerCheckpoint",
    "ProducerId",
    "ProducerState",
    "SequencedBlock",
    "Sequencer",
    "as_unix_ns",
    "build_uuid",
    "clock_of",
    "clock_of_ns",
    "decide",
    "first_sight",
    "fnv1a32",
    "idle_below",
    "is_forgotten",
    "is_sequenced",
    "kind_of",
    "latest_clock",
    "modulo",
    "new_producer_id",
    "parse_uuid",
    "random_choice",
    "rendezvous",
    "sequence_block",
    "sequence_block_scalar",
]
