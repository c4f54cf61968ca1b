"""Server processes, started through a reaper process that lets none outlive the hub."""
