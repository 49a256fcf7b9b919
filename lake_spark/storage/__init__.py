"""Object storage: where the bodies of deltas, snapshots, files and segments are kept."""

from lake_spark.storage.base import Storage, StoredObject
from lake_spark.storage.codec import Codec
from lake_spark.storage.file import FileStorage
from lake_spark.storage.memory import MemoryStorage
from lake_spark.storage.s3 import S3Storage

__all__ = ["Codec", "FileStorage", "MemoryStorage", "S3Storage", "Storage", "StoredObject"]
