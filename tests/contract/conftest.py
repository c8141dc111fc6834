"""The fixtures of every contract."""

from contract.backends import store, url

__all__ = ["store", "url"]
