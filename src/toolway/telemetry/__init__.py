"""What others see of us: metrics, traces, log lines, the last calls. All of it only listens."""
