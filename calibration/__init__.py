"""From a float graph to an INT8 one: trajectories of real searches, ranges, Q/DQ. Never torch."""
