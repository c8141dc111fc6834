"""All measurements of the suite. Importing a module registers its own; the order here is the order of the table."""

from bench.server import native, sqs
from bench.server.suite import SUITE

__all__ = ["SUITE", "native", "sqs"]
