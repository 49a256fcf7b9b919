"""A scheduled job: brings the rows of a folder into a lake as merge patches, reads them back and says what it did.

    spark-submit --properties-file conf/spark-defaults.conf conf/job.py --input s3://my-bucket/users/day=2024-01-31 \
        --catalog 'user-{id}' --app users-daily --version 2024-01-31

The lake is the one of --url-file or of LAKE_URL in the environment: a URL may hold a password, and arguments are seen
by everybody on the machine. A run with a version that is in already changes nothing, so a failed run can be repeated
as it is. Versions grow: one below the newest that is in counts as in.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from lake_spark import register


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--input", required=True, help="folder of the rows, as JSON lines, Parquet or CSV")
    parser.add_argument("--format", default="json", choices=("json", "parquet", "csv"), help="default: %(default)s")
    parser.add_argument(
        "--catalog", required=True, help="column that names a row's catalog, or a template: 'user-{id}'"
    )
    parser.add_argument("--app", required=True, help="name of this job, whose versions apply once")
    parser.add_argument("--version", required=True, type=version, help="number or date of this run: 2024-01-31")
    parser.add_argument("--url-file", type=Path, help="file that holds the lake's URL; default: LAKE_URL")
    parser.add_argument("--metrics-path", default="", help="folder for the figures of tasks and jobs")
    return parser.parse_args(given)


def version(text: str) -> int:
    """A version of the job: a number, or a date without its dashes."""
    return int(text.replace("-", ""))


def main(given: Sequence[str] | None = None) -> int:
    """Write, read back, print a line of JSON; 1 if a document cannot be merged."""
    options = arguments(given)
    url = options.url_file.read_text().strip() if options.url_file else os.environ["LAKE_URL"]
    spark = SparkSession.builder.appName(options.app).getOrCreate()
    register(spark)

    rows = spark.read.format(options.format).load(options.input)
    write(rows, url, options)
    found = documents(spark, url, options).selectExpr("count(*) AS documents", "count(error) AS errors").first()
    summary = {"app": options.app, "version": options.version, "rows": rows.count(), **found.asDict()}
    print(json.dumps(summary))
    spark.stop()
    return 1 if summary["errors"] else 0


def write(rows: DataFrame, url: str, options: argparse.Namespace) -> None:
    """Every row as a merge patch of its document: fields that are null stay as they are."""
    (
        rows.write.format("lake")
        .option("url", url)
        .option("catalogColumn", options.catalog)
        .option("mergeType", "rfc7396")
        .option("nullFields", "omit")
        .option("txnAppId", options.app)
        .option("txnVersion", options.version)
        .option("metricsPath", options.metrics_path)
        .mode("append")
        .save()
    )


def documents(spark: SparkSession, url: str, options: argparse.Namespace) -> DataFrame:
    """The documents whose names begin as the template does."""
    return (
        spark.read.format("lake")
        .option("url", url)
        .option("catalogPrefix", options.catalog.partition("{")[0] if "{" in options.catalog else "")
        .option("metricsPath", options.metrics_path)
        .load()
    )


if __name__ == "__main__":
    sys.exit(main())
