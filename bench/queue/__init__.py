"""The queue suite: publishing, claiming and acknowledging, alone and in batches, on queues small and large.

This module imports nothing, so that a measured child process starts with what it asks for.
"""
