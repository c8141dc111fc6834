"""Queues: messages published once, routed by filters, claimed under leases, and done exactly once.

Body and metadata are stored once, however many queues a message goes to. Each queue keeps its
messages in buckets, with a state log in between, so that a claim costs the same however many wait.

From the user to the owner:

    handle.py            `store.queue(name)`: the queue as a user holds it, sync and async
    worker.py            a worker: claims, calls a handler, extends the lease, settles
    message.py           a message as producers and consumers hold it; the receipt
    calls.py             the user's arguments become operations, and results become objects
    settings.py          a queue's settings: defaults, limits, changes
    operations.py        the operations themselves, and what each answers
    memory.py            what the owner remembers of all queues, which of them get a message, which consumers wait
    machine.py           in the owner: applies operations to that memory, writes a group's changes

A publish:

    publishing.py        body, metadata, dedup key and routing, in the publishing transaction
    filters.py           the CEL expression that decides it
    state.py             what the owner remembers of one queue
    places.py            its messages in order, and which of them can be claimed
    bucket.py            up to a thousand places side by side
    fair.py              queues whose groups are tenants: none starves the others
    grouped.py           the same for a queue with groups: one message at a time from the line of each
    holdings.py          which queues still need a message, so that its body can go

A claim, and how it ends:

    claiming.py          claimed, acknowledged, failed, extended or expired, by receipt
    grant.py             one open claim: what it gave out, to which consumer, until when
    unclaiming.py        what undoes a claim whose messages could not be handed over
    timers.py            one timer wheel for leases, delays and retention
    reader.py            reads bodies straight from the store, in any process
    failures.py          messages that have failed, and the history of attempts
    moving.py            dead letters and redrives from queue to queue

Readers, which are given messages by number instead of under a lease (Spark):

    assignment.py        `queue.reader(name)`, sync and async
    reader_operations.py the operations of readers, and what each answers
    assigning.py         in the owner: plans an assignment, ends the one before, releases a reader
    readers.py           what the owner remembers of readers

Rare calls and questions:

    admin.py             queues made, changed, deleted, purged; failed messages redriven
    listing.py           descriptions, where a message is; a queue's messages, page by page, for programs
    surveying.py         what all queues hold together, and those that stand out, sorted and cut
    peeking.py           the same for people: by state, filter, priority and age, with the first bytes
    info.py              what these answer

Durability and what is forgotten:

    checkpoint.py        folds the state log into the buckets, drops what no queue needs
    loading.py           a new owner reads the buckets, replays the state log, sets a clock right
    housekeeping.py      timers, catching up from the log, collecting; in bounded steps
    verify.py            the queues' part of `store verify`
    verify_queue.py      the buckets and records of one queue
    verify_messages.py   attempts, bodies and the metadata log
"""

from detent.queue.assignment import AssignedMessage, Assignment, AssignmentReader, AsyncAssignmentReader, ReaderInfo
from detent.queue.handle import AsyncQueue, Queue
from detent.queue.info import (
    AttemptInfo,
    DeadLetter,
    FailedMessage,
    MessageInfo,
    MessagePlace,
    QueuedMessage,
    QueueInfo,
    QueuePage,
    message_info,
    queue_info,
)
from detent.queue.machine import QueueMachine
from detent.queue.message import AsyncDelivery, Delivery, Outgoing, Published, Receipt
from detent.queue.operations import PublishedMessages
from detent.queue.reader import QueueReader
from detent.queue.worker import AsyncWorker, DeclaredQueue, Worker

__all__ = [
    "AssignedMessage",
    "Assignment",
    "AssignmentReader",
    "AsyncAssignmentReader",
    "AsyncDelivery",
    "AsyncQueue",
    "AsyncWorker",
    "AttemptInfo",
    "DeadLetter",
    "DeclaredQueue",
    "Delivery",
    "FailedMessage",
    "MessageInfo",
    "MessagePlace",
    "Outgoing",
    "Published",
    "PublishedMessages",
    "Queue",
    "QueueInfo",
    "QueueMachine",
    "QueuePage",
    "QueueReader",
    "QueuedMessage",
    "ReaderInfo",
    "Receipt",
    "Worker",
    "message_info",
    "queue_info",
]
