"""``detent demo``: orders on their way from producers through Spark into a table, while every part of it is killed.

    producers ──► journal orders ──► Spark ──┬► journal paid ──► Spark ──► Delta table paid
    clerk ─► queue rush ─► worker ─┘          └► journal rejected

The store is a folder, embedded, with a process of its own that owns it. The first three files are what a user of Detent
writes; the others run, kill, watch and count them.

    orders.py    producers, whose progress is a register that changes with the append
    rush.py      a queue with dedup keys, and a worker whose effect and acknowledgement are one transaction
    shop.py      two Spark queries: check and split the orders, and write the table
    plan.py      how many orders, which producers, which folders
    __main__.py  one process of the demo
    running.py   a whole run: all processes at work, killed one after another, then the count
    crew.py      the processes: started, watched, started again
    killer.py    which process is killed, and when
    meter.py     how far the run is, seen from outside
    story.py     what the demo says: what is killed, why that is hard, what the numbers mean
    view.py      the live table
    picture.py   the picture of a run
    check.py     counts what arrived, in a process that shares no code with those that wrote
"""
