"""Metrics of a process that has no server, on a port of the loopback address, for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from detent.errors import Invalid
from detent.extras import install_command

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

HOST: Final = "127.0.0.1"


def new_registry() -> CollectorRegistry:
    """A page without metrics; `Invalid` if the package for them is missing."""
    try:
        from prometheus_client import CollectorRegistry
    except ModuleNotFoundError as error:
        raise Invalid(f"metrics need the package prometheus-client: {install_command('server')}") from error
    return CollectorRegistry()


def serve_metrics(port: int, registry: Any) -> None:
    """Answer with the page from now on, until the process ends."""
    from prometheus_client import start_http_server

    try:
        start_http_server(port, HOST, registry)
    except OSError as error:
        raise Invalid(f"metrics cannot be served on port {port}: {error}; choose another one") from error
