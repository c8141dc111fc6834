"""The server suite: the same work through HTTP and SQS, and at peers that are as durable; moto for scale."""
