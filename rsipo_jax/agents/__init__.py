"""The multi-turn loop: prompts, action parsing, and episodes played by the policy."""
