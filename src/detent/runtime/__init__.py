"""What runs, rests and starts over: one way for everything in Detent that works on its own.

This is the lowest layer. It imports only `errors`, `durations` and the standard library.

    backoff.py  how long to pause before the next try, longer after each failure
    thread.py   the one place that starts threads and pools of them
    loop.py     an event loop in a thread
    signals.py  a graceful end on SIGTERM and Ctrl-C
    process.py  the one place that starts child processes, which end with their parent
"""
