"""`detent spark`: what a Spark needs that is not started by Detent."""

from __future__ import annotations

import click

from detent.cli._help import CommandList
from detent.errors import Invalid
from detent.extras import install_command


@click.group(cls=CommandList, short_help="Prepare a Spark that you start yourself.")
def spark() -> None:
    """Prepare a Spark that you start yourself, by spark-submit or with a SparkSession of your own.

    `detent run` and detent.spark.session() need none of this.

    \b
    Example:
      detent spark launcher
    """


@spark.command("launcher", short_help="Print the program by which Spark is to start Python on this machine.")
def launcher() -> None:
    """Print the program by which Spark is to start Python on this machine.

    Spark gives a Python process ten seconds to report. On a busy driver the imports alone can take longer, and a stream
    that starts beside others fails. This program lets the process of a stream report first, and has pyspark's modules
    compiled.

    \b
    Spark on this machine:
      export PYSPARK_PYTHON=$(detent spark launcher)
      spark-submit program.py

    \b
    The driver of a cluster, whose workers have a Python of their own:
      export PYSPARK_DRIVER_PYTHON=$(detent spark launcher)
      spark-submit --master spark://HOST:7077 \\
          --conf spark.pyspark.python=/opt/app/bin/python program.py
    """
    try:
        from detent.spark import launch

        click.echo(launch.launcher())
    except ModuleNotFoundError as error:
        raise Invalid(f"there is no Spark to launch for: {install_command('spark')}") from error
