"""One module a suite; launch/benchmark.py runs them."""
