"""What one machine needs to run everything by itself: a Redis for a folder, and a Java for Spark."""

from lake_spark.embedded.address import folder_of, is_embedded, split_embedded
from lake_spark.embedded.java import java_home, use_java
from lake_spark.embedded.server import EmbeddedRedis, redis_server
from lake_spark.embedded.serving import serve

__all__ = [
    "EmbeddedRedis",
    "folder_of",
    "is_embedded",
    "java_home",
    "redis_server",
    "serve",
    "split_embedded",
    "use_java",
]
