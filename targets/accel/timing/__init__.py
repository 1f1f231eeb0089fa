"""Cycles of programs on the modelled accelerator."""
