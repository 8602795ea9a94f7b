"""Text environments behind one protocol, and the pools that play many of them at once."""
