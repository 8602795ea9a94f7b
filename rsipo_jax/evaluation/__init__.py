"""Fixed panels of games, scores with intervals, and paired comparisons of two runs over one panel."""
