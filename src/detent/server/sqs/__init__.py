"""The SQS endpoint: queues of a store for boto3, the `aws` command line, Celery and other SQS clients.

A request, in the order in which things happen:

    part.py        which requests are for SQS, and how each is answered
    jsonwire.py    the newer protocol: JSON
    querywire.py   the older protocol: forms in, XML out
    shapes.py      what each action takes and answers, field by field
    call.py        one call: its caller and the checks that actions share
    directory.py   the store's queues, looked up and remembered for a moment
    names.py       queue URLs, ARNs, message ids, receipt handles
    sending.py     SendMessage, alone and in batches
    receiving.py   ReceiveMessage
    settling.py    DeleteMessage and ChangeMessageVisibility
    managing.py    queues made, found, changed, emptied, deleted
    moving.py      message move tasks, from a dead-letter queue back
    attributes.py  message attributes and their digests
    settings.py    queue attributes to Detent's settings and back
    labels.py      what SQS knows of a queue and Detent does not
    errors.py      SQS's names for errors
"""

from detent.server.sqs.part import SqsPart

__all__ = ["SqsPart"]
