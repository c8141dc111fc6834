"""The SQS endpoint: queues of a store for boto3, the `aws` command line, Celery and every other client of SQS."""

from detent.server.sqs.part import SqsPart

__all__ = ["SqsPart"]
