"""The lake by SQL, by save modes and as a table: what works, and what says that it does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lake_spark import Lake

pytest.importorskip("pyspark", "4.0")

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def lake(redis_url: str, file_config: dict[str, str]) -> Iterator[Lake]:
    with Lake(redis_url, snapshot="never") as found:
        found.update_config(file_config)
        found.write("a", {"n": 1})
        yield found


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """One with temporary views of its own."""
    return spark.newSession()


@pytest.fixture
def rows(session: SparkSession) -> DataFrame:
    return session.createDataFrame([("b", '{"n":2}')], "catalog string, body string")


def test_a_temporary_view_keeps_its_options_and_the_state_of_its_making(
    session: SparkSession, lake: Lake, redis_url: str
) -> None:
    session.sql(f"CREATE TEMPORARY VIEW documents USING lake OPTIONS (url '{redis_url}')")
    session.sql(f"CREATE TEMPORARY VIEW changes USING lake OPTIONS (url '{redis_url}', view 'deltas', path 'a')")
    assert session.sql("SELECT document FROM documents").collect() == [('{"n":1}',)]
    lake.write("a", {"m": 1}, merge="rfc7396")
    assert session.sql("SELECT document FROM documents").collect() == [('{"n":1}',)]
    assert session.sql("SELECT body FROM changes").collect() == [('{"n":1}',), ('{"m":1}',)]


def test_a_temporary_view_can_have_a_schema(session: SparkSession, lake: Lake, redis_url: str) -> None:
    session.sql(f"CREATE TEMPORARY VIEW numbers (catalog string, n int) USING lake OPTIONS (url '{redis_url}')")
    assert session.sql("SELECT catalog, n + 1 FROM numbers").collect() == [("a", 2)]


@pytest.mark.parametrize("mode", ["ignore", "error", "errorifexists", None])
def test_other_save_modes_are_refused_before_a_task_runs(
    rows: DataFrame, lake: Lake, redis_url: str, mode: str | None
) -> None:
    writer = rows.write.format("lake").option("url", redis_url)
    with pytest.raises(AnalysisException, match='use either the "Append" or "Overwrite" mode'):
        (writer.mode(mode) if mode else writer).save()
    assert list(lake.catalogs()) == ["a"]


def test_save_takes_the_field_path_that_its_rows_change(rows: DataFrame, lake: Lake, redis_url: str) -> None:
    rows.write.format("lake").option("url", redis_url).mode("append").save("/p")
    assert lake.read_map("b") == {"p": {"n": 2}}


def test_partition_by_is_refused(rows: DataFrame, lake: Lake, redis_url: str) -> None:
    with pytest.raises(Exception, match="partitioning"):
        rows.write.format("lake").option("url", redis_url).mode("append").partitionBy("catalog").save()
    assert list(lake.catalogs()) == ["a"]


def test_a_table_has_lost_its_options_and_says_what_to_use(session: SparkSession, lake: Lake, redis_url: str) -> None:
    session.sql(f"CREATE TABLE lost USING lake OPTIONS (url '{redis_url}')")
    try:
        with pytest.raises(AnalysisException, match=r"CREATE TABLE.*TEMPORARY VIEW"):
            session.sql("SELECT * FROM lost").collect()
        with pytest.raises(AnalysisException):
            session.sql("INSERT INTO lost SELECT 'z' AS catalog, '{}' AS body")
    finally:
        session.sql("DROP TABLE lost")
    assert list(lake.catalogs()) == ["a"]


def test_a_table_made_of_a_query_is_refused(session: SparkSession, lake: Lake, redis_url: str) -> None:
    with pytest.raises(AnalysisException, match=r"CREATE TABLE.*TEMPORARY VIEW"):
        session.sql(f"CREATE TABLE made USING lake OPTIONS (url '{redis_url}') AS SELECT 'y' catalog, '{{}}' body")
    assert list(lake.catalogs()) == ["a"]
