"""Hadoop's file system for S3, which Spark needs for `s3a://`: its jars, and settings for the S3 server of tests.

    spark = detent.spark.session(conf=hadoopaws.conf(server.environment))

The SDK is taken in its parts, 18 MB, and not in the bundle of all services, 600 MB.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from mavenjars import Jar, Jars

HADOOP, SDK = "3.5.0", "2.35.4"

JARS = Jars(
    f"hadoop-aws-{HADOOP}",
    (
        Jar("org.apache.hadoop", "hadoop-aws", HADOOP, alone=True),
        Jar("software.amazon.s3.analyticsaccelerator", "analyticsaccelerator-s3", "1.3.1", alone=True),
        Jar("software.amazon.awssdk", "s3", SDK),
        Jar("software.amazon.awssdk", "s3-transfer-manager", SDK),
        Jar("software.amazon.awssdk", "sts", SDK),
        Jar("software.amazon.awssdk", "apache-client", SDK),
    ),
)

needs_s3a = pytest.mark.skipif(JARS.missing() is not None, reason=str(JARS.missing()))

_OF_SPARK = ("slf4j-api-",)
"""Jars that Spark has itself, in a later version."""


def jars() -> str:
    """The jars, as `spark.jars` names them."""
    return ",".join(path for path in JARS.paths() if not path.rpartition("/")[2].startswith(_OF_SPARK))


def conf(environment: Mapping[str, str]) -> dict[str, str]:
    """Settings of a session whose `s3a://` is the server of this environment. Files become visible without a rename
    of each task's folder, which is the cheaper of the two ways that Hadoop's own committer has."""
    return {
        "spark.jars": jars(),
        "spark.hadoop.fs.s3a.endpoint": environment["AWS_ENDPOINT_URL"],
        "spark.hadoop.fs.s3a.endpoint.region": environment["AWS_REGION"],
        "spark.hadoop.fs.s3a.access.key": environment["AWS_ACCESS_KEY_ID"],
        "spark.hadoop.fs.s3a.secret.key": environment["AWS_SECRET_ACCESS_KEY"],
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    }
