"""Handlers: what a tracker and an outbox cost over the same handler without, and what Dramatiq and Celery do meanwhile.

Every side does the same job: for each message one row is committed to a database and one message is sent on. Only ours
with tracker and outbox does so exactly once; a crash at the wrong moment has the others repeat the row, or lose or
repeat what they send.
"""
