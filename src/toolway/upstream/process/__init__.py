"""Child processes, started through a reaper so that none outlives us."""
