"""What can be set of a queue and of a journal, said once.

    setting.py    one setting: how a caller gives it, how it is stored, how it is shown
    queue.py      the settings of queues, and the three forms in which they are held
    journal.py    the same for journals

Everything else follows from these files: the stored record (`codec`), the operations, the keyword arguments of `create`
and `configure`, `info`, the HTTP API and its OpenAPI document, the options of `detent queue` and `detent journal`, and
the columns of Spark's tables. A new setting is described here, and obeyed where it matters: two files.
"""
