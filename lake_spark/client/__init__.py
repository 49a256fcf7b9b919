"""The client of one process: write, list, read, files, meta, samples, history."""

from lake_spark.client.history import Cleared
from lake_spark.client.lake import Lake
from lake_spark.client.settings import Config

__all__ = ["Cleared", "Config", "Lake"]
