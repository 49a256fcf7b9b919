"""The data source: options in, rows out. What is done with them is in reader and writer."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from lake_spark.spark.reader import LakeReader, read_schema, reader_of
from lake_spark.spark.session import options_of
from lake_spark.spark.writer import LakeWriter, writer_of


class LakeDataSource(DataSource):
    """`format("lake")`: views of a lake as rows, and rows as changes of a lake."""

    @classmethod
    def name(cls) -> str:
        return "lake"

    def schema(self) -> StructType:
        return read_schema(options_of(self.options))

    def reader(self, schema: StructType) -> LakeReader:
        return reader_of(options_of(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> LakeWriter:
        return writer_of(options_of(self.options), schema, overwrite=overwrite)
