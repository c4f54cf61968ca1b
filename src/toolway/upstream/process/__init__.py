"""Server processes, started through a reaper process so that none outlives the hub."""
