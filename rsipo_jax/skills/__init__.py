"""Skills: reading what the policy wrote, and how far the replays justify trusting it."""
