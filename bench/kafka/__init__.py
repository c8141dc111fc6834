"""The Kafka suite: bridges in both directions, and the client library alone, over one broker on this machine."""
