"""The job by Dramatiq, as a program: `python -m bench.bus.dramatiq_peer PORT DATABASE ORDERS` prints the seconds."""

from __future__ import annotations

import sys
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.bus import job


def main() -> None:
    port, url, orders = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    broker = RedisBroker(url=f"redis://127.0.0.1:{port}/0")
    broker.client.flushall()
    dramatiq.set_broker(broker)
    with job.books(url) as sessions:

        @dramatiq.actor(queue_name=job.BILLING)
        def bill(number: int, customer: str) -> None:
            raise AssertionError("this queue has no consumer")

        @dramatiq.actor(queue_name=job.ORDERS)
        def place(number: int, customer: str, amount: float) -> None:
            with sessions() as session:
                job.enter(session, number, customer, amount)
                session.commit()
            bill.send(number, customer)

        for number in range(orders):
            order = job.order(number)
            place.send(order.number, order.customer, order.amount)

        def is_done() -> bool:
            sent = broker.client.llen(f"dramatiq:{job.BILLING}")
            return bool(sent >= orders) and not broker.client.hlen(f"dramatiq:{job.ORDERS}.msgs")

        worker = dramatiq.Worker(broker, queues={job.ORDERS}, worker_threads=job.CONCURRENCY)
        started = time.perf_counter()
        worker.start()
        job.end_with(lambda: job.until(is_done, started), sessions, orders)


if __name__ == "__main__":
    main()
