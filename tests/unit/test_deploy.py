"""What `deploy/` holds, as far as it can be looked at without containers: manifests, images, and their commands."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from detent.cli import cli

ROOT = Path(__file__).parents[2]
MANIFESTS = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
DOCKERFILES = sorted((ROOT / "deploy").rglob("Dockerfile"))
API = {
    "ServiceAccount": "v1",
    "Service": "v1",
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "Role": "rbac.authorization.k8s.io/v1",
    "RoleBinding": "rbac.authorization.k8s.io/v1",
}
INSTRUCTIONS = {"FROM", "COPY", "RUN", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "CMD"}
INSTRUCTIONS |= {"WORKDIR", "ENTRYPOINT"}


def documents() -> list[dict[str, Any]]:
    return [one for path in MANIFESTS for one in yaml.safe_load_all(path.read_text())]


def workloads() -> list[dict[str, Any]]:
    return [one for one in documents() if one["kind"] in {"Deployment", "StatefulSet"}]


def pods() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for one in workloads():
        yield one, one["spec"]["template"]["spec"]


def named(kind: str) -> set[str]:
    return {one["metadata"]["name"] for one in documents() if one["kind"] == kind}


def test_manifests_are_of_kinds_that_kubernetes_has() -> None:
    assert MANIFESTS
    for one in documents():
        assert API.get(one["kind"]) == one["apiVersion"], one
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", one["metadata"]["name"])


def test_what_a_workload_names_is_there() -> None:
    for one, pod in pods():
        labels = one["spec"]["template"]["metadata"]["labels"]
        assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert pod["serviceAccountName"] in named("ServiceAccount")
        claimed = {claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", [])}
        volumes = {volume["name"] for volume in pod["volumes"]} | claimed
        for container in pod["containers"]:
            mounted = [mount["name"] for mount in container["volumeMounts"]]
            assert set(mounted) == volumes
            assert len({mount["mountPath"] for mount in container["volumeMounts"]}) == len(mounted)
    for service in (one for one in documents() if one["kind"] == "Service"):
        matching = [pod for one, pod in pods() if _selects(service, one)]
        ports = {port["name"] for pod in matching for one in pod["containers"] for port in one["ports"]}
        assert {port["name"] for port in service["spec"]["ports"]} <= ports


def _selects(service: dict[str, Any], workload: dict[str, Any]) -> bool:
    labels = workload["spec"]["template"]["metadata"]["labels"]
    return bool(service["spec"]["selector"].items() <= labels.items())


def test_roles_are_given_to_accounts_that_are_there() -> None:
    for one in (one for one in documents() if one["kind"] == "RoleBinding"):
        assert one["roleRef"]["name"] in named("Role")
        assert {subject["name"] for subject in one["subjects"]} <= named("ServiceAccount")


def test_secrets_and_files_are_made_by_the_commands_above() -> None:
    for path in MANIFESTS:
        text = path.read_text()
        for _, pod in ((one, pod) for one, pod in pods() if f"name: {one['metadata']['name']}" in text):
            for volume in pod["volumes"]:
                kind, name = next(
                    (kind, one.get("secretName") or one.get("name"))
                    for kind, one in ((kind, volume.get(kind)) for kind in ("secret", "configMap"))
                    if one
                )
                assert re.search(rf"# +kubectl create {kind.lower()} (generic |tls )?{name} ", text)


def settings_of(container: dict[str, Any]) -> dict[str, str]:
    conf = (one.removeprefix("--conf=") for one in container["args"] if one.startswith("--conf="))
    return dict(one.split("=", 1) for one in conf)


def test_driver_is_found_by_executors_where_it_listens() -> None:
    sets = [one for one in workloads() if one["kind"] == "StatefulSet"]
    (workload,) = (one for one in sets if one["metadata"]["name"] != "store")
    driver = workload["spec"]["template"]["spec"]["containers"][0]
    conf = settings_of(driver)
    ports = {port["name"]: port["containerPort"] for port in driver["ports"]}
    assert conf["spark.driver.host"] == f"{workload['spec']['serviceName']}.default.svc"
    assert conf["spark.driver.port"] == str(ports["driver"])
    assert conf["spark.driver.blockManager.port"] == str(ports["blocks"])
    assert conf["spark.kubernetes.container.image"] == driver["image"], "the same Python, the same packages"
    (mount,) = (mount for mount in driver["volumeMounts"] if mount["name"] == "client")
    environment = {one["name"]: one["value"] for one in driver["env"]}
    assert conf["spark.kubernetes.executor.secrets.detent-client"] == mount["mountPath"]
    for name in ("DETENT_TOKEN_FILE", "DETENT_CA_FILE", "AWS_REGION"):
        assert conf[f"spark.executorEnv.{name}"] == environment[name]


def test_standbys_are_found_by_the_names_that_they_tell() -> None:
    (standbys,) = (one for one in workloads() if one["kind"] == "StatefulSet" and one["metadata"]["name"] == "store")
    spec = standbys["spec"]
    (headless,) = (one for one in documents() if one["metadata"]["name"] == spec["serviceName"])
    assert headless["spec"]["clusterIP"] == "None"
    assert headless["spec"]["publishNotReadyAddresses"], "a standby is not ready, and is found"
    assert spec["podManagementPolicy"] == "Parallel", "the second one does not wait for the first to be ready"
    assert spec["updateStrategy"]["type"] == "OnDelete"
    (container,) = spec["template"]["spec"]["containers"]
    port = container["ports"][0]["containerPort"]
    assert f"--advertise=https://$(POD_NAME).{spec['serviceName']}:{port}" in container["args"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"


def command_of(arguments: list[str]) -> None:
    """Take a command's words apart as the command line does; it raises what is wrong with them."""
    assert arguments[0] == "detent"
    command: click.Command = cli
    context, rest = click.Context(cli), arguments[1:]
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command = found
        context = click.Context(command, parent=context, info_name=name)
    command.parse_args(context, rest)


@pytest.mark.parametrize("arguments", [pod["containers"][0]["args"] for _, pod in pods()])
def test_commands_in_manifests_are_taken(arguments: list[str]) -> None:
    files = {"/tls/tls.crt", "/tls/tls.key"}
    command_of([one for one in arguments if not any(file in one for file in files)])
    with pytest.raises(click.UsageError):
        command_of([*arguments, "--no-such-option"])


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_images_take_what_is_there(path: Path) -> None:
    text = re.sub(r"\\\n", " ", path.read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert {line.split()[0] for line in lines} <= INSTRUCTIONS
    copied = [line.split()[1] for line in lines if line.startswith("COPY ") and "--from" not in line]
    assert all((ROOT / one).exists() for one in copied)
    extras = re.search(r"/src\[([\w,]+)\]", text)
    assert extras is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras[1].split(",")) <= set(project["optional-dependencies"])
    pythons = re.findall(r"^FROM python:([\d.]+)-slim", text, re.MULTILINE)
    assert len(set(pythons)) == 1, "an environment works with the Python that made it"


# -- what a container of Spark runs ---------------------------------------------------------------------------------

ENTRYPOINT = ROOT / "deploy" / "spark" / "entrypoint.sh"
EXECUTOR = {
    "SPARK_HOME": "/spark",
    "SPARK_EXECUTOR_MEMORY": "2g",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@shop-driver.default.svc:7078",
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "shop-exec-1",
    **{f"SPARK_JAVA_OPT_{number}": f"-Dn={number} and more" for number in range(11)},
}


def test_executor_is_started_as_spark_asks_in_its_environment(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (tmp_path / "bin" / "java").chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "JAVA_HOME": str(tmp_path), **EXECUTOR}
    done = subprocess.run([ENTRYPOINT, "executor"], env=environment, capture_output=True, text=True, check=True)
    said = done.stdout.splitlines()
    assert said[:11] == [f"-Dn={number} and more" for number in range(11)], "in their order, and whole"
    assert said[11:16] == [
        *("-Xms2g", "-Xmx2g", "-cp", "/spark/jars/*"),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
    ]
    given = dict(zip(said[16::2], said[17::2], strict=True))
    assert given["--driver-url"] == EXECUTOR["SPARK_DRIVER_URL"]
    assert given["--podName"] == "shop-exec-1"
    del environment["SPARK_DRIVER_URL"]
    refused = subprocess.run([ENTRYPOINT, "executor"], env=environment, capture_output=True, text=True)
    assert (refused.returncode, "SPARK_DRIVER_URL" in refused.stderr) == (1, True)


def test_other_words_are_a_command() -> None:
    done = subprocess.run([ENTRYPOINT, "echo", "a b"], capture_output=True, text=True, check=True)
    assert done.stdout == "a b\n"


def test_spark_has_the_class_that_the_entrypoint_starts() -> None:
    pyspark = pytest.importorskip("pyspark")
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("spark-kubernetes_*.jar")
    assert b"org/apache/spark/scheduler/cluster/k8s/KubernetesExecutorBackend.class" in jar.read_bytes()
