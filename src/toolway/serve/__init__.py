"""The `toolway serve` process: sockets, signals, reload, drain and telemetry."""
