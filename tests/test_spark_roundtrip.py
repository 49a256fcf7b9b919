"""What Spark writes reads back as its plain fold: the small form of tests/roundtrip.py, on each kind of storage."""

from __future__ import annotations

import pytest
from roundtrip import Number, Oracle, Row, compare, parse, round_trip, rows

from lake_spark import Lake

pytest.importorskip("pyspark", "4.0")

from pyspark.sql import SparkSession


def test_deltas_of_every_kind_written_by_jobs_read_back_as_their_fold(
    spark: SparkSession, redis_url: str, config: dict[str, str]
) -> None:
    with Lake(redis_url) as lake:
        lake.update_config(config)
    round_trip(spark, redis_url, seed=1, deltas=20_000, catalogs=1_000)


def test_the_same_seed_makes_the_same_deltas() -> None:
    assert list(rows(7, 500, 50)) == list(rows(7, 500, 50)) != list(rows(8, 500, 50))


def test_the_comparison_sees_a_lost_digit() -> None:
    oracle = Oracle()
    oracle.apply(Row(0, "a", "1.50", "/price", "REPLACE"))
    assert oracle.documents["a"] == {"price": Number("1.50")} == parse('{"price":1.50}')
    with pytest.raises(AssertionError, match="catalog 'a'"):
        compare(oracle, {"a": '{"price":1.5}'}, seed=0)
