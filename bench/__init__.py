"""Benchmarks: `python -m bench SUITE` measures ours and something plain in turn, in one run, and judges the ratios."""
