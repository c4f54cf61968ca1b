"""HTTP+SSE, the transport of 2024-11-05: one stream for all answers, a POST for each message. Deprecated."""
