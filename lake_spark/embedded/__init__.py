"""What one machine needs to run everything by itself."""

from lake_spark.embedded.java import java_home, use_java

__all__ = ["java_home", "use_java"]
