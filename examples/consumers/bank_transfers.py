"""Deposits and transfers between accounts: an ordinary SQL table, changed in the transaction that moves the offsets.

    python examples/consumers/bank_transfers.py        # fills two journals of file:./data, books, checks

    detent journal append file:./data bank/deposits --body '{"id": "mine", "account": "ada", "cents": 500}'
    detent journal append file:./data bank/transfers --body '{"id": "x", "from": "ada", "to": "bob", "cents": 9999999}'
    detent run examples/consumers/bank_transfers.py:app --once
    detent journal read file:./data bank/refused
    python examples/consumers/bank_transfers.py        # checks again

and, to see it die between the commit of the database and the acknowledgement of what it published, in a new folder:

    DETENT_CRASH_AT=consumer.after_commit:2 python examples/consumers/bank_transfers.py
    python examples/consumers/bank_transfers.py        # finishes, and checks

The accounts are in a database of yours (`BANK_DATABASE`, or bank.db in this folder), the progress is a row beside them.
What was booked is published to `bank/audit`, what would overdraw an account to `bank/refused`. `check` proves that no
money came or went: the balances add up to the deposits, and the audit journal, played from the start, gives the same
balances, although database and journals cannot commit together.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from typing import Any

import sqlalchemy
from sqlalchemy import BigInteger, Column, MetaData, Table, Text

import detent
from detent.consumer import Consumer, Publish
from detent.state import SqlHandle, SqlState

DEPOSITS, TRANSFERS, AUDIT, REFUSED = "bank/deposits", "bank/transfers", "bank/audit", "bank/refused"
NAMES = ["ada", "bob", "cyd", "dee"]
ROUNDS = 40

TABLES = MetaData()
ACCOUNTS = Table(
    "accounts", TABLES, Column("name", Text, primary_key=True), Column("cents", BigInteger, nullable=False)
)


def database() -> sqlalchemy.Engine:
    """The bank's own database, with its table in it. Each process of the consumer calls this once."""
    engine = sqlalchemy.create_engine(os.environ.get("BANK_DATABASE", "sqlite:///bank.db"))
    TABLES.create_all(engine)
    return engine


app = Consumer(
    "bank",
    store="file:./data",
    read=[DEPOSITS, TRANSFERS],
    state=SqlState(database),
    max_transaction="5ms",  # short ones, so that there is something between them for the kill
    lease="1s",  # how long the next process waits for the one that was killed
)


@app.consume
def book(message: detent.Message, state: SqlHandle, publish: Publish) -> None:
    """Change accounts and say so, or refuse and say so. One of the two commits with the offset, and only once."""
    order = message.json()
    if message.journal == DEPOSITS:
        add(state, order["account"], order["cents"])
    elif balance(state, order["from"]) >= order["cents"] > 0:
        add(state, order["from"], -order["cents"])
        add(state, order["to"], order["cents"])
    else:
        publish(REFUSED, json.dumps({**order, "why": "not enough in the account"}).encode())
        return
    publish(AUDIT, message.body)


def balance(state: SqlHandle, name: str) -> int:
    """What an account has, as the transaction before has left it."""
    return state.scalar(sqlalchemy.select(ACCOUNTS.c.cents).where(ACCOUNTS.c.name == name)) or 0


def add(state: SqlHandle, name: str, cents: int) -> None:
    """Change an account, and open it if need be."""
    changed = state.execute(
        sqlalchemy.update(ACCOUNTS).where(ACCOUNTS.c.name == name).values(cents=ACCOUNTS.c.cents + cents)
    )
    if not changed.rowcount:
        state.execute(sqlalchemy.insert(ACCOUNTS).values(name=name, cents=cents))


def make_input(store: detent.Store, rounds: int = ROUNDS) -> None:
    """Deposits, and more transfers than they can pay for: a deposit and two transfers at a time, as far as they are not
    there already."""
    for journal in (DEPOSITS, TRANSFERS):
        store.journal(journal).create(exist_ok=True)
    for number in range(store.journal(DEPOSITS).next_offset(), rounds):
        chance = random.Random(number)
        deposit = {"id": f"d{number}", "account": chance.choice(NAMES), "cents": chance.randrange(1, 10_000)}
        with store.transaction() as t:
            t.append(DEPOSITS, json.dumps(deposit).encode())
            for which in "ab":
                source, target = chance.sample(NAMES, 2)
                cents = chance.randrange(1, 20_000)
                transfer = {"id": f"t{number}{which}", "from": source, "to": target, "cents": cents}
                t.append(TRANSFERS, json.dumps(transfer).encode())


# -- the proof --------------------------------------------------------------------------------------------------------


def read(store: detent.Store, journal: str) -> list[dict[str, Any]]:
    """All that a journal says."""
    try:
        return [message.json() for message in store.journal(journal).read()]
    except detent.NotFound:
        return []


def check(store: detent.Store) -> list[str]:
    """What is wrong with the books, once everything was read; nothing should be."""
    engine = database()
    with engine.connect() as connection:
        accounts = dict(map(tuple, connection.execute(sqlalchemy.select(ACCOUNTS))))
    engine.dispose()
    deposits, transfers = read(store, DEPOSITS), read(store, TRANSFERS)
    audit, refused = read(store, AUDIT), read(store, REFUSED)
    wrong = []
    if sum(accounts.values()) != sum(order["cents"] for order in deposits):
        wrong.append("the balances do not add up to the deposits")
    if min(accounts.values(), default=0) < 0:
        wrong.append("an account is overdrawn")
    answered = Counter(order["id"] for order in audit + refused)
    if answered != Counter(order["id"] for order in deposits + transfers):
        wrong.append("an order was answered twice, or not at all")
    played: Counter[str] = Counter()
    for order in audit:
        if "account" in order:
            played[order["account"]] += order["cents"]
            continue
        played[order["from"]] -= order["cents"]
        played[order["to"]] += order["cents"]
        if played[order["from"]] < 0:
            wrong.append(f"the audit journal overdraws {order['from']} with {order['id']}")
    if {name: cents for name, cents in played.items() if cents} != {n: cents for n, cents in accounts.items() if cents}:
        wrong.append("the audit journal tells of other balances than the database")
    return wrong


def main(url: str) -> int:
    """Fill the journals, book, check."""
    with detent.open(url) as store:
        for rounds in (ROUNDS // 2, ROUNDS):  # in two parts: which of two journals is read first, is not said
            make_input(store, rounds)
            app.run(store=store, once=True)
        wrong = check(store)
        deposits = read(store, DEPOSITS)
        print(f"{len(deposits)} deposits of together {sum(order['cents'] for order in deposits)} cents")
        print(f"{len(read(store, AUDIT))} orders were booked, {len(read(store, REFUSED))} transfers were refused")
        print("; ".join(wrong) or "the balances add up to the deposits, and the audit journal agrees")
        return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "file:./data"))
