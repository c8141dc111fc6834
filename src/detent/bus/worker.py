"""The worker of an app: the way of a message, from the transport and back, in the order in which things happen.

    take         messages from the transport, as many as threads are free; their leases are renewed from now on
    read         which message it is, and which handlers take it
    begin        a transaction of the handlers' database
    mark         the message as handled, in that transaction; if the mark is there, it is skipped
    handle       call the handlers
    keep         what they send: in the outbox, in that transaction
    commit
    acknowledge  and only then; what was not kept in an outbox is sent before

Whatever fails on the way, the commit included, is an attempt that failed: the transport delivers the message again, or
puts it onto the failed list.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from detent import crash, spans
from detent.bus import messages as wire
from detent.bus.calling import UserCaller
from detent.bus.declared import App, Outcome
from detent.bus.handlers import Handler, invoke
from detent.bus.idempotency import IDEMPOTENCY_CHECK_KEY
from detent.bus.messages import Envelope, Incoming
from detent.bus.sending import Context, Poison, current
from detent.bus.transport import Transport
from detent.bus.unit_engine import EngineUnit
from detent.bus.unit_of_work import TransactionEnded, Unit, UnitOfWork
from detent.errors import DetentError, Invalid, NotFound, StaleReceipt
from detent.queue.message import reason_of
from detent.runtime.backoff import Backoff
from detent.runtime.ground import drive
from detent.runtime.handling import Handling, Hands
from detent.runtime.lease import EXTEND_SHARE, Lease
from detent.runtime.task import Restart

RECEIVE_WAIT_S: Final = 1.0
"""How long an intake waits for messages before it looks whether it is to stop."""

GATHER_S: Final = 0.002
"""How long an intake whose threads are nearly all busy waits for more of them: taking messages is a transaction of the
transport, whether it takes one or ten."""

BACK_OFF: Final = Backoff(0.5, 10.0)
"""How long an intake waits after the transport has failed: longer each time, so that the log stays readable."""

STOP_S: Final = 5.0
"""How long a stop waits for an answer of the transport that is under way."""

_NO_THINGS: Final[dict[Any, Any]] = {}

logger = logging.getLogger("detent.bus")

attempts = logging.getLogger("detent.bus.attempts")
"""Attempts that failed. A program that shows each of them by itself leaves their records out."""


class Intake(Handling[Incoming]):
    """What takes the messages of an app, and the threads that handle them."""

    kind = "intake"
    restart = Restart(BACK_OFF)

    def __init__(self, name: str, transport: Transport, handle: Callable[[Incoming], object], concurrency: int) -> None:
        thread_name = f"detent-bus-{name}"
        super().__init__(thread_name, Hands(thread_name, concurrency, gather_s=GATHER_S))
        self._app = name
        self._transport = transport
        self._handle = handle

    def start(self) -> None:
        """Begin to take messages."""
        self.keeper.start()
        self.taking.start()

    def stop(self, grace_s: float) -> bool:
        """Take no more messages, and wait for those that are being handled; those that take longer are left to their
        leases. Whether all have ended."""
        deadline = time.monotonic() + grace_s
        self.stop_taking()
        self.taking.join(grace_s + STOP_S)  # a transport may be in the middle of an answer
        all_ended = drive(self.finish(max(0.0, deadline - time.monotonic())))
        self.keeper.stop(STOP_S)
        return all_ended

    # -- on the transport ---------------------------------------------------------------------------------------

    def take(self, limit: int) -> list[Incoming]:
        return self._transport.receive(limit, RECEIVE_WAIT_S)

    def handle(self, thing: Incoming) -> object:
        return self._handle(thing)

    def give_back(self, unseen: list[Incoming]) -> None:
        self._transport.give_back(unseen)

    def lease_s(self, thing: Incoming) -> float:
        """As the transport says, for all of them."""
        del thing
        return self._transport.extend_every_s * EXTEND_SHARE

    def extend(self, due: Sequence[Lease[Incoming]]) -> None:
        asked_s = self._clock()
        try:
            self._transport.extend([lease.thing for lease in due])
            for lease in due:
                self.leases.renewed(lease, asked_s=asked_s)
        finally:
            for lease in due:
                if lease.thing.lost:
                    self.leases.lost(lease)
                    text = "%r lost the lease of %s while it is handled"
                    logger.warning(text, self._app, lease.thing.transport_id)

    def failed(self, error: Exception, pause_s: float) -> None:
        trace = None if isinstance(error, DetentError) else error
        text = "%r could not take messages, trying again in %s s: %s"
        logger.warning(text, self._app, pause_s, error, exc_info=trace)


class HandlerExit(Exception):
    """A handler raised what is not an `Exception`: it is its cause."""


@dataclass(slots=True)
class DeliveryStep:
    """A delivery while it is being handled."""

    context: Context
    handlers: Sequence[Handler]
    unit: Unit | None = None
    is_tracked: bool = False
    """Whether this step has made the mark, which goes if it fails."""
    is_committed: bool = False
    ended: TransactionEnded | None = None
    """A handler has ended the transaction: whatever else went wrong, the message cannot be tried again."""


class DeliveryPipeline:
    """Handles deliveries for an app."""

    def __init__(self, bus: App) -> None:
        self._bus = bus

    def deliver(self, incoming: Incoming) -> Outcome:
        """Read it, and handle it in this thread, or on the loop if anything is to be awaited."""
        return contextvars.copy_context().run(self._traced, incoming)  # what one leaves there, the next must not see

    def _traced(self, incoming: Incoming) -> Outcome:
        bus = self._bus
        named = incoming.headers.get(wire.ID) or incoming.transport_id
        with spans.processing(bus.transport.input_name, [incoming.headers], group=bus.name, message=named) as span:
            outcome = self._deliver(incoming)
            if incoming.error is not None:
                spans.failed(span, incoming.error)
            return outcome

    def _deliver(self, incoming: Incoming) -> Outcome:
        calling = self._bus.calling
        try:
            step = self.read(incoming)
        except Exception as error:  # noqa: BLE001 - a message that cannot be read has failed
            return calling.run(self.failed, incoming, error, on_loop=False)
        on_loop = self._bus.always_on_loop or any(one.is_async for one in step.handlers)
        return calling.run(self.handle, incoming, step, on_loop=on_loop)

    # -- from a delivery to a message ---------------------------------------------------------------------------

    def read(self, incoming: Incoming) -> DeliveryStep:
        """The message in a delivery, and its handlers. `Poison` if it can never be read."""
        bus = self._bus
        incoming.headers.pop(IDEMPOTENCY_CHECK_KEY, None)  # not the sender's to say
        message_id = self._id_of(incoming)
        message = bus.decode(incoming.headers, incoming.body)
        handlers = bus.handlers_of(type(message))
        if not handlers:
            raise NotFound(f"{bus.name!r} has no handler for {type(message).__name__}: declare one with @bus.handler")
        return DeliveryStep(Context(bus, incoming, message_id, message), handlers)

    def _id_of(self, incoming: Incoming) -> str:
        given = incoming.headers.get(wire.ID)
        policy = "transport" if self._bus.idempotency is None else self._bus.idempotency.missing_ids
        if not given and callable(policy):
            try:
                given = policy(incoming.headers, incoming.body)
            except Exception as error:
                raise Poison(f"it has no id, and missing_ids could not make one: {reason_of(error)}") from error
        if not given and policy == "transport":
            given = incoming.transport_id
        if not given:
            raise Poison(
                f"it has no id (the header {wire.ID}), so it could not be said whether it was handled before: have the "
                "sender give it one, or say missing_ids='transport' or how to make one"
            )
        if not wire.is_id(given):
            raise Poison(f"its id cannot be one: an id has up to {wire.ID_BYTES_MAX} bytes that can be printed")
        return given

    # -- from a message to its effect ---------------------------------------------------------------------------

    async def handle(self, caller: UserCaller, incoming: Incoming, step: DeliveryStep) -> Outcome:
        """Handle a message, and say so to the transport. Never raises an `Exception`."""
        token = current.set(step.context)
        try:
            try:
                is_repeated = await self._effect(caller, incoming, step)
            finally:
                step.context.close()
                await caller.to_its_end(self._end(caller, step))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is an attempt that failed
            return await self.failed(caller, incoming, step.ended or error, step)
        finally:
            current.reset(token)
        return await self._done(caller, incoming, step, is_repeated)

    async def _effect(self, caller: UserCaller, incoming: Incoming, step: DeliveryStep) -> bool:
        """All that is committed for a message; True if there is nothing, because it was handled before."""
        bus, context = self._bus, step.context
        if bus.unit_of_work is not None:
            await caller.to_its_end(self._begin(caller, bus.unit_of_work, step))
        if bus.idempotency is not None and not await self._track(caller, step):
            if bus.idempotency.should_stop_invocation:
                return True
            context.repeated = True
            context.headers[IDEMPOTENCY_CHECK_KEY] = "true"
        if incoming.attempts > bus.retries.attempts_max:  # looked at here: one that was handled has not failed
            raise Poison(
                f"it was delivered {incoming.attempts - 1} times, and no worker said what became of it: the process "
                "died, or was too slow for its lease, each time"
            )
        await self._invoke(caller, step)
        context.close()  # what is sent from here on would be in no transaction
        if incoming.lost:
            raise StaleReceipt("the lease was lost while the handlers ran: another worker has the message")
        await self._keep(caller, incoming, step)
        await caller.to_its_end(self._commit(caller, step))
        return False

    async def _begin(self, caller: UserCaller, unit_of_work: UnitOfWork, step: DeliveryStep) -> None:
        step.unit = await caller.unit(unit_of_work.begin)

    async def _track(self, caller: UserCaller, step: DeliveryStep) -> bool:
        """Mark the message: True if it was not marked before."""
        assert self._bus.idempotency is not None
        tracker = self._bus.idempotency.tracker
        crash.point("bus.before_track")
        call = caller.unit if tracker.is_transactional else caller.user
        step.is_tracked = await call(tracker.track, self._bus.name, step.context.message_id, step.unit)
        if not isinstance(step.is_tracked, bool):
            raise Invalid(f"{type(tracker).__name__}.track answers True or False, not {step.is_tracked!r}")
        crash.point("bus.after_track")
        return step.is_tracked

    async def _invoke(self, caller: UserCaller, step: DeliveryStep) -> None:
        bus, context = self._bus, step.context
        things = step.unit.provides if step.unit is not None else _NO_THINGS
        made: dict[Any, Any] = {}
        for hook in bus.middlewares:
            await _user(caller.user(hook.before_handle, context))
        crash.point("bus.before_handler")
        has_replied = False
        for handler in step.handlers:
            answer = await _user(invoke(caller, handler, bus.dependencies, context, things, made))
            if answer is None or not context.wants_reply:
                continue
            if has_replied:
                raise Invalid(f"two handlers of {type(context.message).__name__} answer the request: one may")
            context.reply(answer)
            has_replied = True
        crash.point("bus.after_handler")
        for hook in bus.middlewares:
            await _user(caller.user(hook.after_handle, context))

    async def _keep(self, caller: UserCaller, incoming: Incoming, step: DeliveryStep) -> None:
        """Have what the handlers sent commit with what they wrote, where that can be."""
        envelopes = step.context.envelopes
        if isinstance(step.unit, EngineUnit):
            step.unit.settle(incoming, envelopes)
        elif self._bus.outbox is not None and envelopes:
            assert step.unit is not None
            step.unit.check()
            crash.point("bus.before_save")
            await caller.unit(self._bus.outbox.save, step.unit, envelopes)
            crash.point("bus.after_save")

    async def _commit(self, caller: UserCaller, step: DeliveryStep) -> None:
        if step.unit is not None:
            crash.point("bus.before_commit")
            await caller.unit(step.unit.commit)
            crash.point("bus.after_commit")
        step.is_committed = True

    async def _end(self, caller: UserCaller, step: DeliveryStep) -> None:
        """Undo what is not committed, and let go. What fails here is logged: the error before it is the one to see."""
        unit, step.unit = step.unit, None
        if unit is not None:
            if not step.is_committed:
                try:
                    await self._try(caller.unit, unit.rollback)
                except TransactionEnded as error:
                    step.ended = error
            await self._try(caller.unit, unit.close)
        if not step.is_tracked or self._bus.idempotency is None:
            return
        tracker = self._bus.idempotency.tracker
        call = caller.unit if tracker.is_transactional else caller.user
        settle = tracker.committed if step.is_committed else tracker.rolled_back
        await self._try(call, settle, self._bus.name, step.context.message_id)

    async def _try(self, call: Any, *values: Any) -> None:
        try:
            await _user(call(*values))
        except TransactionEnded:
            raise
        except Exception:
            logger.exception("%r could not tidy up after a message", self._bus.name)

    # -- from the effect to the transport -----------------------------------------------------------------------

    async def _done(self, caller: UserCaller, incoming: Incoming, step: DeliveryStep, is_repeated: bool) -> Outcome:
        """The effect is durable, now or since an earlier time: send what was not kept, and acknowledge."""
        bus, context = self._bus, step.context
        if is_repeated:
            logger.info("%r has handled the message %s before: skipped", bus.name, context.message_id)
        hooks = [hook.on_repeated if is_repeated else hook.after_commit for hook in bus.middlewares]
        for hook in hooks:
            await self._try(caller.user, hook, context)
        outcome = Outcome.REPEATED if is_repeated else Outcome.HANDLED
        if bus.settles_itself and not is_repeated:
            return outcome
        if not is_repeated and bus.outbox is None:
            try:
                await self._send(caller, context.envelopes)
            except Exception as error:  # noqa: BLE001 - whatever it is, they are not sent
                return await self.failed(caller, incoming, self._unsent(error), step)
        elif context.envelopes:
            bus.wake()
        return outcome if await self._acknowledge(caller, incoming, context) else Outcome.LEFT

    async def _acknowledge(self, caller: UserCaller, incoming: Incoming, context: Context) -> bool:
        """Say that it is done. What goes wrong with that does not undo it: the message comes again, and is known."""
        try:
            crash.point("bus.before_ack")
            await caller.blocking(self._bus.transport.acknowledge, incoming)
            crash.point("bus.after_ack")
        except StaleReceipt:
            logger.info("the lease of the message %s was gone when it was done; it may come again", context.message_id)
        except Exception as error:  # noqa: BLE001 - see above
            logger.warning("the message %s is done, and could not be acknowledged: %s", context.message_id, error)
            return False
        return True

    def _unsent(self, error: Exception) -> Exception:
        """The effect is there, and messages were not sent. If the message is repeated its handlers send them again,
        unless repeated ones are skipped: then people have to see to it."""
        config = self._bus.idempotency
        if config is None or not config.should_stop_invocation:
            return error
        return Poison(
            f"it was handled, and what it sends could not be sent: {reason_of(error)}. It would be skipped as "
            "repeated; an outbox keeps such messages"
        )

    async def _send(self, caller: UserCaller, envelopes: Sequence[Envelope]) -> None:
        if not envelopes:
            return
        crash.point("bus.before_send")
        errors = await caller.blocking(self._bus.transport.send, envelopes)
        crash.point("bus.after_send")
        for error in errors.values():
            raise error

    async def failed(
        self, caller: UserCaller, incoming: Incoming, error: Exception, step: DeliveryStep | None = None
    ) -> Outcome:
        """An attempt failed: have the message delivered again, or put it onto the failed list."""
        bus = self._bus
        incoming.error = error
        if step is not None:
            for hook in bus.middlewares:
                await self._try(caller.user, hook.on_failure, step.context, error)
        reason = error.reason if isinstance(error, Poison) else reason_of(error)
        raised = error.__cause__ if isinstance(error, HandlerExit) and error.__cause__ is not None else error
        delay_s = bus.retries.delay_s(incoming.attempts, raised)
        shown = step.context.message_id if step is not None else incoming.transport_id
        try:
            if delay_s is None:
                attempts.error("%r gives up the message %s: %s", bus.name, shown, reason, exc_info=error)
                await caller.blocking(bus.transport.give_up, incoming, reason)
                return Outcome.GIVEN_UP
            attempts.warning(
                "attempt %d of %r at the message %s failed: %s", incoming.attempts, bus.name, shown, reason,
                exc_info=error,
            )  # fmt: skip
            await caller.blocking(bus.transport.retry, incoming, delay_s, reason)
            return Outcome.RETRIED
        except StaleReceipt:
            logger.info("the lease of the message %s was gone when it had failed; it comes again", shown)
        except DetentError as told:
            logger.warning(
                "the transport could not be told that the message %s failed; its lease will end: %s", shown, told
            )
        return Outcome.LEFT


async def _user(call: Awaitable[Any]) -> Any:
    """What a user's function answers. One that would end the thread, or the event loop with all that runs there, has
    failed, and so has one that raises a `BaseException` of its own; a coroutine that is really cancelled is."""
    try:
        return await call
    except (Exception, GeneratorExit):  # the latter ends this coroutine
        raise
    except SystemExit as error:
        raise HandlerExit(f"a handler wanted to exit: {error!r}") from error
    except KeyboardInterrupt as error:
        if threading.current_thread() is threading.main_thread():
            raise  # Ctrl-C was pressed
        raise HandlerExit("a handler raised KeyboardInterrupt") from error
    except asyncio.CancelledError as error:
        if _is_cancelled():
            raise
        raise HandlerExit("a handler raised CancelledError: what it waited for was cancelled") from error
    except BaseException as error:
        raise HandlerExit(f"a handler raised an error that is not an Exception: {reason_of(error)}") from error


def _is_cancelled() -> bool:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is not None and task.cancelling() > 0
