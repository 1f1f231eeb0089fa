"""Mutated models: whatever is in a file, lampc compiles it or refuses it in one line, in little time and memory."""
