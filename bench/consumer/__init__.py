"""Consumers: messages a second through a shard, how long one message takes, and how long a dead process is missed.

Every kind of state does the same job. What it is set against: a loop that reads the same journal and does nothing,
which cannot be beaten, and a loop over it that does the job by hand with sqlite3, which is what one would write
instead.

Quix Streams and Faust are not in the table, although they are what a Python programmer would look at. Both read from
and write to a Kafka broker, and none was found that pip installs: the packages with such names hold clients, or
fixtures that need a broker from elsewhere. With a broker on the same two cores the figures would be about the broker.
"""
