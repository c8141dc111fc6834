"""The Spark suite: journals as source and sink beside Spark's own Parquet, and what a micro-batch costs.

This module imports nothing, so that listing suites starts no Java.
"""
