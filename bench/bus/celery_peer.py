"""The job by Celery, as a program: `python -m bench.bus.celery_peer PORT DATABASE ORDERS` prints the seconds."""

from __future__ import annotations

import sys
import threading
import time

import redis
from celery import Celery
from celery.signals import worker_ready

from bench.bus import job


def new_app(port: int) -> Celery:
    app = Celery("bench", broker=f"redis://127.0.0.1:{port}/0")
    app.conf.update(
        task_acks_late=True,
        task_ignore_result=True,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        broker_connection_retry_on_startup=True,
        task_routes={"place": {"queue": job.ORDERS}, "bill": {"queue": job.BILLING}},
    )
    return app


def main() -> None:
    port, url, orders = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    client = redis.Redis(port=port)
    client.flushall()
    app = new_app(port)
    with job.books(url) as sessions:

        @app.task(name="bill")
        def bill(number: int, customer: str) -> None:
            raise AssertionError("this queue has no consumer")

        @app.task(name="place")
        def place(number: int, customer: str, amount: float) -> None:
            with sessions() as session:
                job.enter(session, number, customer, amount)
                session.commit()
            bill.delay(number, customer)

        for number in range(orders):
            order = job.order(number)
            place.delay(order.number, order.customer, order.amount)

        worker = app.Worker(
            quiet=True,
            pool="threads",
            concurrency=job.CONCURRENCY,
            queues=[job.ORDERS],
            loglevel="ERROR",
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
        )

        def is_done() -> bool:
            return bool(client.llen(job.BILLING) >= orders) and not client.hlen("unacked")

        def watch(started: float) -> None:
            job.end_with(lambda: job.until(is_done, started), sessions, orders)

        @worker_ready.connect(weak=False)
        def ready(**_: object) -> None:
            """It begins to take messages."""
            threading.Thread(target=watch, args=(time.perf_counter(),)).start()

        worker.start()


if __name__ == "__main__":
    main()
