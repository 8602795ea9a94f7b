"""The processes of `--suite=retrieval`: ours, and the libraries alone."""
