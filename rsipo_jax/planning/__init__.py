"""What a run would need of machines that are not at hand: its real programs compiled ahead of time, and counted."""
