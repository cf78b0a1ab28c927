"""Overlaid-digit datasets: digit sources, synthesis and the HDF5 file. Never imports torch.

The parts, in the order in which data flows through them: `spec` (every choice of a dataset), `digits` (where
the source digits come from), `synthesis` (pure: spec, digits, index range -> samples) and `store` (the file).
Import them by name; this module imports nothing.
"""
