"""Message ids, clocks, partition mappings and sequencing. Pure: no I/O, no randomness of its own, and no wall clock but
where `Sequencer.checkpoint` is given a horizon and no time."""

from detent.message.block import Carried, SequencedBlock, sequence_block_scalar
from detent.message.clock import TICK, Clock, as_unix_ns, clock_of, clock_of_ns
from detent.message.flags import ACK_TXN, CONTINUE_TXN, FLAGS_MAX, OUTSIDE_TXN, kind_of
from detent.message.forgetting import CLOCK_AHEAD_NS, idle_below, is_forgotten, latest_clock
from detent.message.mapping import MappingFunction, fnv1a32, modulo, random_choice, rendezvous
from detent.message.ring import Envelope
from detent.message.sequence import NO_SPAN, Outcome, ProducerState, decide, first_sight
from detent.message.sequencer import HORIZON_NS, RING_SIZE, Checkpoint, ProducerCheckpoint, Sequencer
from detent.message.uuids import ProducerId, build_uuid, is_sequenced, new_producer_id, parse_uuid
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
