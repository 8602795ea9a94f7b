"""ALFWorld: household tasks in text. Two engines play the same games; a generator makes more of them."""
