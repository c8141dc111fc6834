"""Queues: messages published once, routed by filters, claimed under leases, and done exactly once.

Payloads and metadata are stored once, whatever queues a message goes to. Each queue keeps its messages in buckets, and
a state log in between, so that a claim costs the same however many wait.
"""

from detent.queue.assignment import AssignedMessage, Assignment, AssignmentReader, AsyncAssignmentReader, ReaderInfo
from detent.queue.handle import AsyncQueue, Queue
from detent.queue.info import AttemptInfo, FailedMessage, MessageInfo, MessagePlace, QueueInfo, message_info, queue_info
from detent.queue.machine import QueueMachine
from detent.queue.message import AsyncDelivery, Delivery, Outgoing, Published, Receipt
from detent.queue.operations import PublishedMessages
from detent.queue.reader import QueueReader
from detent.queue.transaction import QueueOperations
from detent.queue.worker import AsyncWorker, Worker

__all__ = [
    "AssignedMessage",
    "Assignment",
    "AssignmentReader",
    "AsyncAssignmentReader",
    "AsyncDelivery",
    "AsyncQueue",
    "AsyncWorker",
    "AttemptInfo",
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
    "QueueOperations",
    "QueueReader",
    "ReaderInfo",
    "Receipt",
    "Worker",
    "message_info",
    "queue_info",
]
