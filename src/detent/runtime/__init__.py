"""What runs, rests and starts over: one way for everything in Detent that works on its own.

This is the lowest layer. It imports only `errors`, `durations`, `extras` and the standard library.

    backoff.py  how long to pause before the next try, longer after each failure
    report.py   what a task says of itself: state, progress, lag, trouble
    target.py   finding what a command was told to run, in a file or a module
    thread.py   the one place that starts threads and pools of them
    loop.py     an event loop in a thread
    signals.py  a graceful end on SIGTERM and Ctrl-C
    process.py  the one place that starts child processes, which end with their parent
"""
