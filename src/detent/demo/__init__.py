"""``detent demo``: orders on their way from producers through Spark into a table, while every part of it is killed.

    producers ──► journal orders ──► Spark ──┬► journal paid ──► Spark ──► Delta table paid
    clerk ─► queue rush ─► worker ─┘          └► journal rejected

The store is a folder, embedded, with a process of its own that owns it. `running` starts all processes and starts those
again that `killer` ends with ``kill -9``; when everything has arrived, `check` counts, in a process that shares no code
with those that wrote. Start with `orders`, `rush` and `shop`: they are what a user of Detent writes.
"""
