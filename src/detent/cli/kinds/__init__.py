"""The kinds of tasks: what each is called, and how one is found in a file.

Nothing of a kind is imported before a command needs it.

    consumer.py   applications with state that read journals
    graph.py      graphs of processors
    bus.py        apps that handle typed messages
    pipeline.py   streams of Spark
"""
