"""What runs, rests and starts over: one way for everything in Detent that works on its own.

This is the lowest layer. It imports only `errors`, `durations`, `extras` and the standard library.

    task.py        what a kind of worker is: a `Task`; begins with the life of a task in five steps
    supervisor.py  the one loop that takes tasks through their lives, and stops several in order
    lease.py       what is held for a time, and the one keeper that renews it
    backoff.py     how long to pause before the next try, longer after each failure
    report.py      what a task says of itself: state, progress, lag, trouble
    target.py      finding what a command was told to run, in a file or a module
    ground.py      where a task runs: in a thread, on an event loop, in turns
    thread.py      the one place that starts threads and pools of them
    loop.py        an event loop in a thread
    handling.py    taking pieces of work, a hand for each, their leases, an orderly end
    process.py     the one place that starts child processes, which end with their parent
    signals.py     a graceful end on SIGTERM and Ctrl-C

A new kind of worker is a `Task` that says what its steps are, and nothing else:

    class Copying(Task):
        kind = "copying"
        restart = Restart(Backoff(0.2, 30.0), steady_s=60.0)    # how it rests after a failure

        def open(self) -> Waits | None:                         # take the lease, raise the fence, connect
            if not self._lease():
                return Waits("standby", "another process copies", look_s=0.5)
            self._leases.take(self.name, self, self._lease_s)   # a keeper renews it meanwhile

        def step(self) -> Next:                                 # one transaction
            return AGAIN if self._copy_some() else POLL_S

        def leave(self) -> None:                                # give the lease back
            self._release()

    with stop_on_signals(stopping):
        supervisor = Supervisor(on_event)
        supervisor.add(KeepLeases("copying", leases, renew))    # stopped last
        supervisor.add(Copying("orders"))
        supervisor.run(stopping, patience_s=30.0)

Threads, restarts, rests, standby, SIGTERM, the order of the end and reports come from here. A step that waits by
itself ends it in `interrupt`. Work that runs in a process of its own is a `ChildTask`. Where every function is a
coroutine, `await Supervised(task).run()` is the same on an event loop.
"""
