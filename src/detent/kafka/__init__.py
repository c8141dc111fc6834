"""Kafka: a topic into journals or queues, and a journal out to a topic, exactly once and without Spark.

    from detent.kafka import FromTopic, ToTopic

    orders = FromTopic("orders", store="file:./data", brokers="127.0.0.1:9092", topic="orders", journal="orders")
    paid = ToTopic("paid", store="file:./data", brokers="127.0.0.1:9092", journal="paid", topic="paid")

`detent run FILE` runs what a file declares, and `detent bridge kafka` runs one without a file.

    bridge.py       `FromTopic` and `ToTopic`
    declaration.py  what they are declared with
    mapping.py      pure: a Kafka record as a message of Detent, and back
    letters.py      pure: a record that a message cannot hold, as a dead letter
    place.py        pure: how far a bridge is, what it goes on from, and what it refuses
    cluster.py      the client library: its configuration, topics, and its errors as ours
    inward.py       a topic's records and the next offsets, in one transaction of Detent
    outward.py      a journal's messages and the next offset, in one transaction of Kafka
    sharing.py      which process works on which partitions: leases in the store
    task.py         one shard of a bridge as a task: it takes its lease, works, and starts over
    running.py      a bridge with its store open, in this process
    looking.py      a bridge as its store knows it: looked at, paused, reset, removed
"""

from detent.kafka.bridge import Bridge, FromTopic, ToTopic

__all__ = ["Bridge", "FromTopic", "ToTopic"]
