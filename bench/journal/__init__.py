"""The journal suite: appending, reading, sequencing, reopening and waking, against the plainest thing that works.

This module imports nothing, so that a measured child process starts with what it asks for.
"""
