"""One gateway of a cluster: what joins a hub, the record and the bus. Loaded with `--cluster` alone."""
