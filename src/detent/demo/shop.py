"""The shop: orders are checked, enriched and split by Spark, and what is paid goes into a Delta table.

Both queries are ordinary ones of Spark. The first one's sink writes to the journal that each row names, and enters the
batch in the store's ledger in the same transaction; the second one's writes a batch to the table with its number as
Delta's transaction id. So a batch that Spark repeats, because it was killed before it could note that it was done,
changes nothing.
"""

from __future__ import annotations

from detent.demo.plan import ORDERS, PAID, REJECTED, DemoPlan
from detent.spark import once, session, to_delta

CORES = 2
TAX_PERCENT = 19

ORDER = "id BIGINT, customer STRING, amount BIGINT, item STRING"
SALE = f"{ORDER}, tax BIGINT, region STRING"

SPLIT = [
    f"CASE WHEN amount > 0 THEN '{PAID}' ELSE '{REJECTED}' END AS journal",
    f"""to_json(struct(
        id, customer, amount, item,
        amount * {TAX_PERCENT} DIV {100 + TAX_PERCENT} AS tax,
        element_at(array('north', 'east', 'south', 'west'), cast(right(customer, 4) AS INT) % 4 + 1) AS region
    )) AS body""",
]


def sell(plan: DemoPlan) -> None:
    """Be Spark's driver, until it is killed or a query fails."""
    spark = session(cores=CORES, quick=True)
    source = spark.readStream.format("detent").option("maxMessagesPerTrigger", plan.batch)

    orders = source.option("journals", ORDERS).load(plan.url)
    split = orders.selectExpr(f"from_json(cast(body AS STRING), '{ORDER}') AS it").select("it.*").selectExpr(*SPLIT)
    checkpoint = str(plan.checkpoints / "split")
    split.writeStream.format("detent").queryName("split").option("checkpointLocation", checkpoint).start(plan.url)

    paid = source.option("journals", PAID).load(plan.url)
    sales = paid.selectExpr(f"from_json(cast(body AS STRING), '{SALE}') AS it").select("it.*")
    into_table = sales.writeStream.foreachBatch(once(plan.url, "table", to_delta(plan.table))).queryName("table")
    into_table.option("checkpointLocation", str(plan.checkpoints / "table")).start()

    spark.streams.awaitAnyTermination()
