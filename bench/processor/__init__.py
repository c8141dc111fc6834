"""Processors: what exactly-once costs over journals alone, one message at a time and many, hop by hop.

Two things are set beside a graph. *Raw* is one journal, and a thread that tails it: no program that hands a message on
can be faster. *By hand* is what one would write instead: threads that tail one journal and append to the next one. They
keep no progress, so they cannot be stopped and started again without losing messages or writing some twice.

Everything runs in one process, which owns the store; the functions give back what they get, and bodies have 100 bytes.
"""
