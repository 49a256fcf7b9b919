"""Spark looks for data sources in packages named like this one: `format("lake")` needs no registration.

Importing this is cheap and loads nothing of the lake: a package that fails here would keep Spark from
finding any data source at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """Stands for the lake's data source until it is used."""

    @classmethod
    def name(cls) -> str:
        return "lake"

    @property
    def _source(self) -> DataSource:
        from lake_spark.spark.source import LakeDataSource

        return LakeDataSource(self.options)

    def schema(self) -> StructType | str:
        return self._source.schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return self._source.reader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return self._source.writer(schema, overwrite)
