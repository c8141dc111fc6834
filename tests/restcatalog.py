"""A loopback Iceberg REST catalog for tests, Iceberg's own: its jars come from Maven Central once, into a folder of the
user's cache, and a Java file of a few lines gives them to a server on 127.0.0.1.

    with rest_catalog() as catalog:
        catalog.url          # http://127.0.0.1:PORT
        catalog.warehouse    # a folder in which it makes tables

`shared_catalog()` starts one once per test process. `needs_catalog` skips tests where Java or Maven is missing, and
says which.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mavenjars import Jar, Jars
from servers import HOST, await_answer, free_port, shared, stop

ICEBERG, JETTY, SQLITE = "1.11.0", "12.1.8", "3.50.3.0"
START_SECONDS = 120.0

_JARS = Jars(
    f"iceberg-{ICEBERG}",
    (
        Jar("org.apache.iceberg", "iceberg-core", ICEBERG),
        Jar("org.apache.iceberg", "iceberg-core", ICEBERG, "tests", alone=True),
        Jar("org.eclipse.jetty.ee10", "jetty-ee10-servlet", JETTY),
        Jar("org.eclipse.jetty.compression", "jetty-compression-server", JETTY),
        Jar("org.eclipse.jetty.compression", "jetty-compression-gzip", JETTY),
        Jar("org.xerial", "sqlite-jdbc", SQLITE),
        Jar("org.slf4j", "slf4j-nop", "2.0.17"),
    ),
)

_SERVER = """
import java.net.InetSocketAddress;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;

public class RestCatalog {
    public static void main(String[] words) throws Exception {
        var properties = Map.of(
            "catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog", "jdbc.schema-version", "V1",
            "uri", "jdbc:sqlite:" + words[1] + "/catalog.db", "warehouse", words[1] + "/warehouse");
        var catalog = CatalogUtil.buildIcebergCatalog("tests", properties, new Configuration());
        var server = new Server(new InetSocketAddress("127.0.0.1", Integer.parseInt(words[0])));
        var context = new ServletContextHandler("/");
        context.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
        server.setHandler(context);
        server.start();
        server.join();
    }
}
"""


needs_catalog = pytest.mark.skipif(_JARS.missing() is not None, reason=str(_JARS.missing()))


@dataclass(frozen=True)
class RestCatalog:
    """A running catalog."""

    url: str
    warehouse: str


@contextlib.contextmanager
def rest_catalog() -> Iterator[RestCatalog]:
    """Start a catalog on a free port; stop it by its process id at the end."""
    import pyspark

    folder, port = Path(tempfile.mkdtemp(prefix="detent-catalog-")), free_port()
    program, log = folder / "RestCatalog.java", folder / "log"
    program.write_text(_SERVER)
    hadoop = sorted((Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar"))
    path = os.pathsep.join([f"{_JARS.folder()}/*", *map(str, hadoop)])
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", path]
    url = f"http://{HOST}:{port}"
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["java", *options, str(program), str(port), str(folder)], stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        await_answer(process, lambda: _answers(url), log, START_SECONDS)
        yield RestCatalog(url, str(folder / "warehouse"))
    finally:
        stop(process)
        shutil.rmtree(folder, ignore_errors=True)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/v1/config", timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


shared_catalog = shared(rest_catalog)
