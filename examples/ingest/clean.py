"""What the ingest does with the rows of each batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def clean(orders: DataFrame) -> DataFrame:
    """Orders that are worth something, with the customer's name in one way of writing."""
    return orders.where("amount > 0 OR _rescued_data IS NOT NULL").selectExpr(
        "id", "upper(trim(customer)) AS customer", "amount", "_rescued_data"
    )
