"""Small hooks around messages, for what every handler would have to do otherwise: logs, metrics, tracing, headers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from detent.bus.calling import is_coroutine_function

if TYPE_CHECKING:
    from detent.bus.context import Context
    from detent.bus.envelope import Envelope

_HOOKS: Final = ("on_start", "on_stop", "before_handle", "after_handle", "after_commit", "on_repeated", "on_failure")


class Middleware:
    """Override what you need. Every hook but `before_send` may be ``async def``; what it raises before the commit fails
    the message, and what it raises afterwards is logged, because the message is done."""

    @property
    def is_async(self) -> bool:
        """Whether one of its hooks is ``async def``: then all messages are handled on an event loop."""
        return any(is_coroutine_function(getattr(self, hook)) for hook in _HOOKS)

    def on_start(self, bus: Any) -> Any:
        """The app, a `Bus`, is about to start."""

    def on_stop(self, bus: Any) -> Any:
        """The app, a `Bus`, has stopped."""

    def before_handle(self, context: Context) -> Any:
        """A message's handlers are about to run, in its transaction."""

    def after_handle(self, context: Context) -> Any:
        """They have run; the transaction is not committed yet."""

    def after_commit(self, context: Context) -> Any:
        """What they did is durable."""

    def on_repeated(self, context: Context) -> Any:
        """A message was skipped because it was handled before."""

    def on_failure(self, context: Context, error: BaseException) -> Any:
        """An attempt failed, and nothing of it took effect."""

    def before_send(self, envelope: Envelope) -> Envelope:
        """A message is about to be sent, or kept to be sent: answer it, or a changed copy."""
        return envelope
