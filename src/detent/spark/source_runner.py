"""The process of a stream's source, which ends quietly when its query does.

Spark stops it by hanging up, and Spark's own runner answers that with three tracebacks. The launcher (`python.py`)
starts this in its place, and the first one leaves a nursery behind for the next.
"""

from __future__ import annotations

from pyspark.sql.streaming.python_streaming_source_runner import main
from pyspark.worker_util import get_sock_file_to_executor

from detent.spark import nursery


def run() -> None:
    """Answer Spark's questions until it hangs up."""
    nursery.begin()
    try:
        with get_sock_file_to_executor(timeout=None) as stream:
            main(stream, stream)
    except (BrokenPipeError, ConnectionResetError):
        return  # nobody is left to tell


if __name__ == "__main__":
    run()
