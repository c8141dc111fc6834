"""What Spark's launcher runs for the source of a stream: asks the zygote (`source_process.py`) for one, or starts one.

It is run by its path and without the `site` module, so that it is done in a fiftieth of a second: it may import nothing
but the standard library's quickest modules, and nothing of Detent.
"""

import os
import socket
import struct
import sys

CONNECTION = "PYTHON_WORKER_FACTORY_SOCK_PATH"
"""The variable in which Spark tells a process where to report."""

SOCKET = "sources.sock"
ANSWER_S = 10.0
LENGTH = ">I"
BORN = b"+"
INSTEAD = "detent.spark.source_process"


def is_born() -> bool:
    """Whether the zygote has forked a process in this one's place, with its environment and its streams."""
    place = os.environ.get(CONNECTION)
    if not place or not hasattr(socket, "send_fds"):
        return False
    data = b"\0".join(b"%b=%b" % entry for entry in os.environb.items())
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_S)
        try:
            connection.connect(os.path.join(os.path.dirname(place), SOCKET))
            socket.send_fds(connection, [struct.pack(LENGTH, len(data))], [1, 2])
            connection.sendall(data)
            return connection.recv(1) == BORN
        except OSError:
            return False  # there is no zygote yet, or none any more


if __name__ == "__main__":
    if not is_born():
        os.execv(sys.executable, [sys.executable, "-m", INSTEAD, *sys.argv[1:]])
